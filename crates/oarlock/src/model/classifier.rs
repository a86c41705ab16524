//! A decoder with a classification head.
