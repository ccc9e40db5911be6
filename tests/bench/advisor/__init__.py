"""What the advisor reaches: noise scale, planner, watching. One module a measurement.

    python -m tests.bench.advisor [NAME …]

Each module has `measure()`, which gives its figures by name; the last line is one JSON object of them all.

    gaussian_noise    noise_scale_rel_error, interval_coverage: gradients whose noise scale is known, 100
    digits            digits_b_crit_factor: the noise scale against the batch that training itself prefers
    memory_plan       peak_memory_error: predicted against measured peaks, at sizes that no probe had
    fastest_pair      plan_regret, plan_s: the chosen pair against an exhaustive interleaved sweep
    healthy_runs      false_alarms: 100,000 windows without a fault, half of them heavy-tailed
    faults_seen       spike_recall, drift_recall
    watching_cost     watching_cost_us_per_window
"""
