//! Who does what: one process first, only some processes, triggers, a share of a list.
