//! Which declared units move on their own: the auto-wrap policies.
