//! `oarlock serve`: a model behind OpenAI's API.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{ArgAction, Args};
use oarlock::adapters::{stop_ids, tokenizer_folder};
use oarlock::config::ChatArgs;
use oarlock::data::{Chat, ChatTemplate, Tokenizer};
use oarlock::generate::Generator;
use oarlock::generate::engine::{Engine, Limits};
use oarlock_serve::{DEFAULT_HOST, DEFAULT_PORT, Options};

use super::model::HowArgs;
use crate::console::{Outcome, eprint};
use crate::error::{Error, Result};
use crate::front::fetch;
use crate::serving::{self, Served};

#[derive(Args)]
pub(super) struct ServeArgs {
    /// The model's folder, its GGUF file, or OWNER/NAME on a hub
    #[arg(required_unless_present = "named_model")]
    model: Option<PathBuf>,
    /// The same as MODEL
    #[arg(long = "model", value_name = "MODEL", hide = true, conflicts_with = "model")]
    named_model: Option<PathBuf>,
    /// Folders of adapters that are merged into it, in order
    #[arg(long, value_delimiter = ',', value_name = "PATH")]
    merge: Vec<PathBuf>,
    /// An adapter on the model, which is asked for as the model NAME; can be given several times
    #[arg(long, value_name = "NAME=PATH")]
    adapter: Vec<String>,
    /// The name of the model in requests; by default that of its folder or file
    #[arg(long)]
    name: Option<String>,
    /// Whether other names mean the model as well
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    any_name: bool,
    /// Whether answers to chats are streamed where a request does not say
    #[arg(long, action = ArgAction::Set, default_value_t = false)]
    streams: bool,
    /// The template of the prompts, by the names of LLaMA-Factory; by default the model's own
    #[arg(long)]
    template: Option<String>,
    /// Whether a reasoning model is to think where a request does not say; by default its template decides
    #[arg(long)]
    enable_thinking: Option<bool>,
    /// The most tokens of an answer where a request does not say; by default what the context has room for
    #[arg(long)]
    max_tokens: Option<usize>,
    /// The temperature where a request does not say; by default that of generation_config.json, or else 1
    #[arg(long, allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// The same of top_p
    #[arg(long)]
    top_p: Option<f32>,
    /// The same of top_k, by default 0 for all
    #[arg(long)]
    top_k: Option<usize>,
    /// The same of repetition_penalty
    #[arg(long)]
    repetition_penalty: Option<f32>,
    /// The most tokens of an answer that are guessed at a time, where its text repeats itself; 0 guesses none. Answers
    /// stay the same
    #[arg(long, value_name = "N", default_value_t = Limits::DEFAULT_SPECULATIVE_TOKENS)]
    speculative_tokens: usize,
    /// The address to listen at; the default is reached from this machine alone
    #[arg(long, default_value_t = IpAddr::V4(DEFAULT_HOST))]
    host: IpAddr,
    /// The port
    #[arg(long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// A file of keys, one on each line; a request must show one of them
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// A further name by which the server may be addressed while it has no key
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// An origin, such as https://chat.example, whose pages may use the server
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    #[command(flatten)]
    how: HowArgs,
}

pub(super) fn run(args: &ServeArgs) -> Outcome {
    let options = Options {
        api_keys: serving::keys(args.api_key_file.as_deref())?,
        allowed_hosts: args.allow_host.clone(),
        allowed_origins: args.allow_origin.clone(),
        accepts_any_model: args.any_name,
        streams_by_default: args.streams,
        max_tokens: args.max_tokens,
        ..Options::local()
    };
    let adapters: Vec<(&str, PathBuf)> =
        args.adapter.iter().map(|word| named(word)).collect::<Result<_>>()?;
    let listener = serving::listen(args.host, args.port)?;
    let word = args.model.as_ref().or(args.named_model.as_ref()).map_or(Path::new(""), PathBuf::as_path);
    let model = fetch::model(word)?;
    let name = args.name.clone().unwrap_or_else(|| name_of(word));
    let mut names: Vec<&str> = adapters.iter().map(|(name, _)| *name).chain([&name[..]]).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::Usage(format!(
            "two models have the name {:?}; write --adapter OTHER=PATH",
            twice[0]
        ))
        .into());
    }
    let paths: Vec<PathBuf> = adapters.iter().map(|(_, path)| path.clone()).collect();
    let (generator, tokenizer, numbers) = args.how.load_with(&model, &args.merge, &paths)?;
    let engine = Arc::new(serving::start(generator, args.speculative_tokens)?);
    let mut models =
        vec![served(args, (&name, None), engine.clone(), None, tokenizer, (&model, &args.merge))?];
    for ((adapter, path), number) in adapters.into_iter().zip(numbers) {
        let adapters = [&args.merge[..], &[path]].concat();
        let (engine, tokenizer) = match number {
            Some(_) => (engine.clone(), Tokenizer::open(tokenizer_folder(&model, &adapters))?),
            None => {
                eprint(&format!(
                    "note: the adapter {adapter} is a merged copy of the model, and takes its memory\n"
                ));
                let (generator, tokenizer) = args.how.load(&model, &adapters)?;
                (Arc::new(serving::start(generator, args.speculative_tokens)?), tokenizer)
            }
        };
        let of = (adapter, Some(&name[..]));
        models.push(served(args, of, engine, number, tokenizer, (&model, &adapters))?);
    }
    serving::run(listener, models, options)
}

/// A model, or an adapter on it, by its name and that of the model below; what an engine answers with the adapter of this
/// number.
fn served(
    args: &ServeArgs,
    (name, parent): (&str, Option<&str>),
    engine: Arc<Engine>,
    number: Option<usize>,
    tokenizer: Tokenizer,
    (dir, adapters): (&Path, &[PathBuf]),
) -> Result<Served> {
    let side = tokenizer_folder(dir, adapters);
    let generator = engine.generator();
    let template =
        args.template.as_ref().map(|word| template(word, generator, &tokenizer, side)).transpose()?;
    let mut served = Served::new(name, parent, (engine, number), tokenizer, side, template)?;
    if let Some(on) = args.enable_thinking {
        served.think(on);
    }
    let mut sampling = served.sampling().clone();
    sampling.temperature = args.temperature.unwrap_or(sampling.temperature);
    sampling.top_p = args.top_p.unwrap_or(sampling.top_p);
    sampling.top_k = args.top_k.unwrap_or(sampling.top_k);
    sampling.repetition_penalty = args.repetition_penalty.unwrap_or(sampling.repetition_penalty);
    served.sample_by(sampling)?;
    Ok(served)
}

/// A template by its name, and the tokens that end its answers.
fn template(
    name: &str,
    generator: &Generator,
    tokenizer: &Tokenizer,
    side: &Path,
) -> Result<(ChatTemplate, Vec<u32>)> {
    let chat = ChatArgs { template: Some(name.to_owned()), ..ChatArgs::default() };
    let chat = Chat::new(tokenizer, side, &chat, usize::MAX)?;
    let stops = stop_ids(&chat, tokenizer, generator.config())?;
    Ok((chat.prompts(tokenizer, side)?, stops))
}

/// `NAME=PATH`.
fn named(word: &str) -> Result<(&str, PathBuf)> {
    match word.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name, path.into())),
        _ => Err(Error::Usage(format!("--adapter {word}: expected NAME=PATH, as in --adapter sft=out/lora"))),
    }
}

/// What a model is called in requests: its name on a hub, or that of its folder or file.
fn name_of(model: &Path) -> String {
    if !model.exists() {
        return model.display().to_string();
    }
    let whole = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    let stem = if whole.is_dir() { whole.file_name() } else { whole.file_stem() };
    stem.map_or_else(|| "model".to_owned(), |stem| stem.to_string_lossy().into_owned())
}
