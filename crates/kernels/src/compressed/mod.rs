//! Numbers in few bits, as ranks send them: signs for 1-bit optimizers, integers with scales for ZeRO++.

pub mod block_int;
pub mod sign_bits;
