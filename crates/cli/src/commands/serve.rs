//! `oarlock serve`: a model behind OpenAI's API.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use oarlock::adapters::{stop_ids, tokenizer_folder};
use oarlock::config::ChatArgs;
use oarlock::data::{Chat, ChatTemplate, Tokenizer};
use oarlock::generate::Generator;
use oarlock_serve::{DEFAULT_HOST, DEFAULT_PORT, Options};

use super::model::HowArgs;
use crate::console::Outcome;
use crate::error::{Error, Result};
use crate::front::fetch;
use crate::serving::{self, Served};

#[derive(Args)]
pub(super) struct ServeArgs {
    /// The model's folder, its GGUF file, or OWNER/NAME on a hub
    model: PathBuf,
    /// An adapter on the model, which is asked for as the model NAME; can be given several times
    #[arg(long, value_name = "NAME=PATH")]
    adapter: Vec<String>,
    /// The name of the model in requests; by default that of its folder or file
    #[arg(long)]
    name: Option<String>,
    /// The template of the prompts, by the names of LLaMA-Factory; by default the model's own
    #[arg(long)]
    template: Option<String>,
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
        api_keys: args.api_key_file.as_deref().map_or(Ok(Vec::new()), serving::keys)?,
        allowed_hosts: args.allow_host.clone(),
        allowed_origins: args.allow_origin.clone(),
        ..Options::local()
    };
    let adapters: Vec<(&str, PathBuf)> =
        args.adapter.iter().map(|word| named(word)).collect::<Result<_>>()?;
    let listener = serving::listen(args.host, args.port)?;
    let model = fetch::model(&args.model)?;
    let name = args.name.clone().unwrap_or_else(|| name_of(&args.model));
    let mut names: Vec<&str> = adapters.iter().map(|(name, _)| *name).chain([&name[..]]).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::Usage(format!(
            "two models have the name {:?}; write --adapter OTHER=PATH",
            twice[0]
        ))
        .into());
    }
    let mut models = vec![served(args, &name, None, &model, &[])?];
    for (adapter, path) in adapters {
        models.push(served(args, adapter, Some(&name), &model, &[path])?);
    }
    serving::run(listener, models, options)
}

/// A model, or an adapter on it, with an engine of its own.
fn served(
    args: &ServeArgs,
    name: &str,
    parent: Option<&str>,
    dir: &Path,
    adapters: &[PathBuf],
) -> Result<Served> {
    let (generator, tokenizer) = args.how.load(dir, adapters)?;
    let side = tokenizer_folder(dir, adapters);
    let template =
        args.template.as_ref().map(|word| template(word, &generator, &tokenizer, side)).transpose()?;
    Served::new(name, parent, generator, tokenizer, side, template)
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
