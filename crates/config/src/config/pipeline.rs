//! Pipeline parallelism as a run asks for it.

/// How the units of a model are divided over stages, and in which order a stage runs its micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineArgs {
    /// Stages that a model is divided into, one on each rank of a pipeline. 1: no pipeline.
    pub stages: usize,
    /// Parts of the model on each stage: with more than one the schedule is interleaved (Narayanan et al. 2021), else it is
    /// 1F1B.
    pub virtual_stages: usize,
    /// What decides where a stage ends.
    pub partition: PartitionMethod,
}

impl Default for PipelineArgs {
    /// No pipeline.
    fn default() -> PipelineArgs {
        PipelineArgs { stages: 1, virtual_stages: 1, partition: PartitionMethod::Parameters }
    }
}

impl PipelineArgs {
    /// So many stages, with 1F1B.
    pub fn stages(stages: usize) -> PipelineArgs {
        PipelineArgs { stages, ..PipelineArgs::default() }
    }

    /// Whether there is a pipeline at all.
    pub fn is_on(&self) -> bool {
        self.stages > 1
    }
}

/// What decides where a stage ends: DeepSpeed's `partition_method`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionMethod {
    /// The stages have about as many trained parameters.
    Parameters,
    /// The stages have as many units.
    Uniform,
    /// The stages have as many units whose type matches this regular expression, whatever the case of its letters.
    Type(String),
}

impl std::str::FromStr for PartitionMethod {
    type Err = String;

    fn from_str(text: &str) -> Result<PartitionMethod, String> {
        match (text.to_lowercase().as_str(), text.split_once(':')) {
            ("parameters", _) => Ok(PartitionMethod::Parameters),
            ("uniform", _) => Ok(PartitionMethod::Uniform),
            (_, Some((kind, pattern))) if kind.eq_ignore_ascii_case("type") && !pattern.is_empty() => {
                Ok(PartitionMethod::Type(pattern.to_owned()))
            }
            _ => {
                Err(format!("\"{text}\" is not a partition method; write parameters, uniform or type:REGEX"))
            }
        }
    }
}

impl std::fmt::Display for PartitionMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PartitionMethod::Parameters => f.write_str("parameters"),
            PartitionMethod::Uniform => f.write_str("uniform"),
            PartitionMethod::Type(pattern) => write!(f, "type:{pattern}"),
        }
    }
}
