//! Memory: freeing what was prepared, and the largest batch size that fits.
