//! Models behind the server of OpenAI's API: [`served`] is one of them, [`backend`] gives the server all, [`prompts`] makes
//! prompts of conversations, and [`forms`] grammars of what answers have to be.

mod backend;
mod forms;
mod prompts;
mod served;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex};

use oarlock_serve::{ApiKey, Ended, Options, serve, stop};

use self::backend::Models;
pub use self::served::{Served, start};
use crate::config::render::visible;
use crate::console::{Outcome, eprint, print};
use crate::error::{Error, Result};
use crate::launch;

/// Takes an address, so that one which is taken is known before a model is read.
///
/// # Errors
/// An address that is taken, or not of this machine.
pub fn listen(host: IpAddr, port: u16) -> Result<TcpListener> {
    let address = SocketAddr::new(host, port);
    TcpListener::bind(address).map_err(|cause| {
        Error::Usage(format!("cannot listen at {address}: {cause}; name another --port or --host"))
    })
}

/// The variable with a key, beside those of a file.
pub const API_KEY: &str = "OARLOCK_API_KEY";

/// The keys of a file, one on each line, and that of the environment.
///
/// # Errors
/// A file that cannot be read or has no key, and a key that no client can send.
pub fn keys(path: Option<&Path>) -> Result<Vec<ApiKey>> {
    let key = |text: &str, of: &str| {
        let problem =
            || Error::Usage(format!("{of}: expected keys of letters, digits and marks without spaces"));
        ApiKey::new(text.trim()).ok_or_else(problem)
    };
    let variable = std::env::var(API_KEY).ok().filter(|text| !text.trim().is_empty());
    let mut keys: Vec<ApiKey> = variable.iter().map(|text| key(text, API_KEY)).collect::<Result<_>>()?;
    let Some(path) = path else { return Ok(keys) };
    let text =
        oarlock_comm::read_text(path, oarlock_comm::MAX_CONFIG_BYTES).map_err(Error::io("read", path))?;
    let of = path.display().to_string();
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let listed: Vec<ApiKey> = lines.map(|line| key(line, &of)).collect::<Result<_>>()?;
    // Otherwise everybody could use what somebody meant to close.
    if listed.is_empty() {
        return Err(Error::Usage(format!("{of}: it holds no key; write one on a line")));
    }
    keys.extend(listed);
    Ok(keys)
}

/// Serves until a signal asks for the end.
pub fn run(listener: TcpListener, models: Vec<Served>, options: Options) -> Outcome {
    let address = listener.local_addr().map_err(Error::io("find", "the address of the server"))?;
    let names: Vec<&str> = models.iter().map(Served::name).collect();
    if !address.ip().is_loopback() && options.api_keys.is_empty() {
        eprint("warning: whoever reaches this address can use the model; --api-key-file F asks for a key\n");
    }
    let listed = names.iter().map(|name| visible(name, 200)).collect::<Vec<_>>().join(", ");
    print(&format!("serving {listed} at http://{address}/v1; Ctrl-C ends it\n"))?;
    let (stop, stopped) = stop();
    let stop = Mutex::new(Some(stop));
    // A second signal ends the program at once.
    launch::on_stop(move |signal| match stop.lock().ok().and_then(|mut stop| stop.take()) {
        Some(stop) => {
            eprint("note: what has begun is finished, within 30 seconds; once more ends it at once\n");
            stop.stop();
        }
        None => std::process::exit(128 + signal),
    })?;
    let Ended { n_cut_off } = serve(listener, Arc::new(Models::new(models)), options, stopped)
        .map_err(|error| Error::Other(Box::new(error)))?;
    if n_cut_off > 0 {
        eprint(&format!("note: {n_cut_off} answers were not complete\n"));
    }
    Ok(())
}
