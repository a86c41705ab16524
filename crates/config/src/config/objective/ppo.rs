//! Stage ppo, which is not there: its keys.

use crate::settings::keys::Range::NotNegative;
use crate::settings::keys::Status::NoEffect;
use crate::settings::keys::ValueType::{Bool, Float, Int};
use crate::settings::keys::{Group::Method, key, key_table};

key_table! {
    /// The keys of stage ppo, which is not there.
    pub const PPO_KEYS = [
        PPO_EPOCHS: usize = key(Method, Int(1), "ppo_epochs", "4", NoEffect("stage ppo is not there"), "Passes over a buffer in stage ppo"),
        PPO_BUFFER_SIZE: usize = key(Method, Int(1), "ppo_buffer_size", "1", NoEffect("stage ppo is not there"), "Size of the buffer in stage ppo"),
        PPO_TARGET: f64 = key(Method, Float(NotNegative), "ppo_target", "6", NoEffect("stage ppo is not there"), "Target of the divergence in stage ppo"),
        PPO_SCORE_NORM: bool = key(Method, Bool, "ppo_score_norm", "false", NoEffect("stage ppo is not there"), "Normalize scores in stage ppo"),
        PPO_WHITEN_REWARDS: bool = key(Method, Bool, "ppo_whiten_rewards", "false", NoEffect("stage ppo is not there"), "Whiten rewards in stage ppo"),
    ];
}
