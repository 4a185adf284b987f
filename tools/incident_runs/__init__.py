"""The small runs of the incidents; each module plants one fault and measures what probes show.

`measure(seed)` returns {"numbers": {name: number}, "curves": {name: {"x": [...], line: [...]}}}.
Three of the numbers measure the symptom: `healthy` without the fault, `fault` with it, and
`repaired` after the repair.
"""
