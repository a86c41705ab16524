//! The loss of a token.

use oarlock_tensor::ops::TokenLoss;

/// What is trained on each token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenLossArgs {
    /// The loss.
    pub kind: TokenLoss,
    /// How strong the noise on the embeddings is (NEFTune); `None` for none.
    pub neftune_alpha: Option<f64>,
    /// Evaluate the share of targets that are the likeliest tokens, too.
    pub accuracy: bool,
}
