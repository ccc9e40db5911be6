"""The commands of `gradacc`, each in a module that is imported only when it is run."""
