"""The machine of a run: pure functions and folds over records. No async, no clock, no I/O."""
