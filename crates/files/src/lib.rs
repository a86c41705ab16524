//! Writes files, in a few ways that nobody's link can lead elsewhere. A folder of data that somebody hands out, or one that
//! others may write, can hold a link under any name that a program is about to write; whoever opens that name with the
//! standard library writes to wherever the link leads.
//!
//! ```text
//! replace, Replacement    a whole file: another name first, made anew, then renamed; a link at its place is replaced
//! begin                   an empty file that grows, made in the same way
//! append, append_new      a file that grows
//! open, open_or_create    a file of which parts are written, and locks
//! create_new              a file that must not be there
//! link                    a link of our own
//! private_folder          a folder that is this user's alone, and read_private a file of it
//! ```
//!
//! What is opened where it lies must be a plain file with one name: links are refused, and the error says where they lead.
//! Links in the middle of a path stay what they are: the folder that a user names may be a link that the user made.

mod folder;
mod opened;
mod replaced;
mod token;

pub use folder::{private_folder, read_private};
pub use opened::{append, append_new, create_new, open, open_or_create, overwrite_handed, refuse_link};
pub use replaced::{Replacement, begin, link, replace};
pub use token::token;
