//! Names that nobody can guess.

use std::io;

/// A name that nobody can guess, so that nobody has put anything at its place: 16 hexadecimal digits.
///
/// # Errors
/// When the operating system gives no random bytes.
pub fn token() -> io::Result<String> {
    let mut bytes = [0; 8];
    let n_bytes = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    // So few bytes come at once, once there are any.
    if n_bytes < bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(format!("{:016x}", u64::from_le_bytes(bytes)))
}
