//! Sparse attention and sequences that are divided over ranks.

use oarlock::nn::{Direction, Pattern, SparsityConfig};

use super::{bad, file, good, wrong};

/// The block of DeepSpeed's documentation, for each mode.
fn block(mode: &str) -> String {
    format!(
        r#"{{"sparse_attention": {{"mode": "{mode}", "block": 32, "different_layout_per_head": true,
        "num_local_blocks": 4, "num_global_blocks": 1, "attention": "unidirectional",
        "horizontal_global_attention": false, "num_different_global_patterns": 4, "num_random_blocks": 1,
        "local_window_blocks": [4, 2], "global_block_indices": [0, 3], "global_block_end_indices": null,
        "num_sliding_window_blocks": 3}}}}"#
    )
}

#[test]
fn each_mode_reaches_the_model() {
    let attention = Direction::Unidirectional;
    let starts = vec![0, 3];
    for (mode, pattern) in [
        ("dense", Pattern::Dense),
        (
            "fixed",
            Pattern::Fixed {
                num_local_blocks: 4,
                num_global_blocks: 1,
                attention,
                horizontal_global_attention: false,
                num_different_global_patterns: 4,
            },
        ),
        (
            "variable",
            Pattern::Variable {
                num_random_blocks: 1,
                local_window_blocks: vec![4, 2],
                global_block_indices: starts.clone(),
                global_block_end_indices: None,
                attention,
                horizontal_global_attention: false,
            },
        ),
        (
            "bigbird",
            Pattern::BigBird {
                num_random_blocks: 1,
                num_sliding_window_blocks: 3,
                num_global_blocks: 1,
                attention,
            },
        ),
        (
            "bslongformer",
            Pattern::BsLongformer {
                num_sliding_window_blocks: 3,
                global_block_indices: starts,
                global_block_end_indices: None,
                attention,
            },
        ),
    ] {
        let config = file(&block(mode), "cutoff_len: 1024\nseed: 9\n");
        let expected = SparsityConfig {
            block: 32,
            different_layout_per_head: true,
            pattern,
            seed: 9,
            max_seq_length: Some(1024),
        };
        assert_eq!(config.model.sparse_attention, Some(expected), "{mode}");
    }
    let config = file(r#"{"sparse_attention": {"block": 64}}"#, "");
    let sparsity = config.model.sparse_attention.clone().unwrap();
    assert_eq!((sparsity.block, sparsity.pattern, sparsity.seed), (64, Pattern::fixed(), 42));
    assert_eq!(file("{}", "").model.sparse_attention, None);
    // To DeepSpeed a block without keys is one of the mode fixed.
    let config = file(r#"{"sparse_attention": {}}"#, "");
    assert_eq!(config.model.sparse_attention.clone().unwrap().pattern, Pattern::fixed());
    assert_eq!(file(r#"{"sparse_attention": null}"#, "").model.sparse_attention, None);
}

#[test]
fn what_no_layout_is_made_of_is_named() {
    for (json, text, expected) in [
        (
            r#"{"sparse_attention": {"block": 24}}"#,
            "",
            "ds.json:1:32: `sparse_attention`: block is 24, but the kernels take multiples of 16",
        ),
        (
            r#"{"sparse_attention": {"mode": "strided"}}"#,
            "",
            "ds.json:1:31: `sparse_attention.mode` takes one of dense, fixed, variable, bigbird, bslongformer",
        ),
        (
            r#"{"sparse_attention": {"mode": "variable", "local_window_blocks": [4, "x"]}}"#,
            "",
            "`sparse_attention.local_window_blocks` takes whole numbers from 0 on, not `4, x`",
        ),
        (
            r#"{"sparse_attention": {"mode": "fixed", "num_local_blocks": 5, "num_global_blocks": 2}}"#,
            "",
            "num_local_blocks, 5, is not a multiple of num_global_blocks, 2",
        ),
        (
            r#"{"sparse_attention": {"mode": "fixed"}}"#,
            "stage: sft\ntemplate: default\n",
            "`sparse_attention` needs rows that begin with a text",
        ),
    ] {
        let said = wrong(json, text);
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn sequences_are_divided_over_ranks() {
    let config = good("num_processes: 4\nsequence_parallel_size: 2");
    assert_eq!(config.ranks.sequence_parallel, 2);
    assert_eq!(good("").ranks.sequence_parallel, 1);
    // A batch is of groups of ranks.
    let json = r#"{"sequence_parallel_size": 2, "train_batch_size": 12, "gradient_accumulation_steps": 3}"#;
    let config = file(json, "num_processes: 4\n");
    assert_eq!((config.ranks.sequence_parallel, config.train.batch_size), (2, 2));
    for (text, expected) in [
        (
            "num_processes: 3\nsequence_parallel_size: 2",
            "`num_processes` is 3, which `sequence_parallel_size` (2) does not",
        ),
        (
            "num_processes: 3\nsequence_parallel_size: 3",
            "`cutoff_len` is 2048, which `sequence_parallel_size` (3) does not",
        ),
        (
            "num_processes: 2\nsequence_parallel_size: 2\nneftune_noise_alpha: 5",
            "`neftune_noise_alpha` needs whole sequences",
        ),
        ("ulysses_sequence_parallel_size: 2", "did you mean `sequence_parallel_size`"),
    ] {
        let said = bad(text, &[], &[]);
        assert!(said.contains(expected), "{said}");
    }
}
