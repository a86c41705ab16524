#!/bin/sh
# The command of MiniMind's guide on two CPU ranks, with a small model and the corpus of this repository.
# OARLOCK names the program; else it is the one in PATH, or is built. Further arguments are flags of train_pretrain.
set -eu
cd "$(dirname "$0")/.."
if [ -z "${OARLOCK:-}" ] && ! command -v oarlock > /dev/null; then
    cargo build --release
    OARLOCK="${CARGO_TARGET_DIR:-target}/release/oarlock"
fi
exec "${OARLOCK:-oarlock}" accelerate launch --config_file recipes/accelerate_config.yaml --cpu \
    train_pretrain_accelerate.py \
    --epochs 3 \
    --batch_size 2 \
    --learning_rate 3e-3 \
    --dtype bfloat16 \
    --accumulation_steps 1 \
    --grad_clip 1.0 \
    --log_interval 40 \
    --save_interval 300 \
    --dim 256 \
    --n_layers 4 \
    --vocab_size 1024 \
    --max_seq_len 256 \
    --use_flash_attn \
    --profile \
    --profile_interval 100 \
    --data_path recipes/corpus/pretrain.jsonl \
    --tokenizer_path recipes/minimind-small \
    --out_dir out/minimind \
    "$@"
