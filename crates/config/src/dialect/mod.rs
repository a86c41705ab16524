//! Front ends: what other programs' configurations say, in this program's terms. A block of theirs is read against a
//! table of its keys; what has a key of ours joins the settings as if written there, and must agree with them; what
//! shards states over ranks becomes [`ShardingConfig`](crate::config::ShardingConfig). The names of stages and strategies end here.

pub mod accelerate;
mod block;
mod deepspeed;
mod deepspeed_config;
pub mod deepspeed_keys;
mod fsdp;
pub mod fsdp_keys;
mod left_out;
mod methods;
mod read;
mod sparse_attention;

pub use block::{Dialect, Dialects, Ranks, ReadFile, join, settle};
pub use deepspeed_config::{DeepSpeedArgs, DeepSpeedConfig};
pub use left_out::defaults as optimizer_defaults;
pub use read::{Sharding, read, shard};
pub use sparse_attention::sparse_attention;
