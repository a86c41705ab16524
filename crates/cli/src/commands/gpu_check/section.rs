//! The parts of gpu-check.

/// The parts of a check, in the order of what they tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Section {
    Device,
    Words,
    Ops,
    Training,
    Nccl,
    Tune,
    Throughput,
    Speed,
    Offload,
    Cudnn,
    Large,
    Ranks,
    Sanitizer,
    Peers,
}

impl Section {
    pub const ALL: [Section; 14] = [
        Section::Device,
        Section::Words,
        Section::Ops,
        Section::Training,
        Section::Nccl,
        Section::Tune,
        Section::Throughput,
        Section::Speed,
        Section::Offload,
        Section::Cudnn,
        Section::Large,
        Section::Ranks,
        Section::Sanitizer,
        Section::Peers,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Section::Device => "device",
            Section::Words => "words",
            Section::Ops => "ops",
            Section::Training => "training",
            Section::Nccl => "nccl",
            Section::Tune => "tune",
            Section::Throughput => "throughput",
            Section::Speed => "speed",
            Section::Offload => "offload",
            Section::Cudnn => "cudnn",
            Section::Large => "large",
            Section::Ranks => "ranks",
            Section::Sanitizer => "sanitizer",
            Section::Peers => "peers",
        }
    }

    /// The section of this name.
    pub fn named(name: &str) -> Option<Section> {
        Section::ALL.into_iter().find(|section| section.name() == name)
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Section::Device => "Device and libraries",
            Section::Words => "Words: each instruction that the kernels are written in, by itself",
            Section::Ops => "Ops: the GPU beside formulas in f64, errors relative to the largest value",
            Section::Training => "Training: losses on the GPU beside those on the CPU",
            Section::Nccl => "NCCL: each call with one rank",
            Section::Tune => "Tuning: the algorithms of matrix products, the tiles of attention",
            Section::Throughput => "Throughput: training in bf16, AdamW, random weights",
            Section::Speed => "Speed: ops beside the memory and the products of this GPU",
            Section::Offload => {
                "Offloading: losses beside those of a training run that keeps everything on the GPU"
            }
            Section::Cudnn => "cuDNN: attention beside formulas in f64, and its speed",
            Section::Large => "Large: operands of more than 2^31 elements",
            Section::Ranks => "Ranks: losses of two ranks on one GPU beside those of one rank",
            Section::Sanitizer => "Sanitizer: small checks under compute-sanitizer",
            Section::Peers => {
                "Peers: transformers and Accelerate with torch.compile and SDPA, the same steps"
            }
        }
    }
}
