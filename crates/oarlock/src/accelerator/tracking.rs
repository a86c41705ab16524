//! Trackers: where a loop logs its figures.
