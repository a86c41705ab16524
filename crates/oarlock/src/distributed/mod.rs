//! Ranks started from code, process groups, and the bare collectives.
