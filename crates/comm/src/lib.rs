//! Ranks and collectives.
