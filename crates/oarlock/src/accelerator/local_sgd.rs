//! Local SGD: ranks step by themselves and average their weights every few steps.
