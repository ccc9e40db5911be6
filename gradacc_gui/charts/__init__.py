"""The live charts (pyqtgraph): loss, memory, throughput, gradient norm, learning rate and N, device."""

from gradacc_gui.charts.grid import ChartGrid

__all__ = ["ChartGrid"]
