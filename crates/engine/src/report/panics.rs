//! What a panic of another thread has said.

use std::any::Any;

/// The text of a panic.
pub fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it gave no reason")
}

#[cfg(test)]
mod tests {
    use super::message;

    #[test]
    fn the_text_of_every_kind_of_panic() {
        assert_eq!(message(&"a literal"), "a literal");
        assert_eq!(message(&format!("a text of {}", 3)), "a text of 3");
        assert_eq!(message(&7), "it gave no reason");
    }
}
