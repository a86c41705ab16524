//! The wire format of protocol buffers, as much of it as events and records need: fields in the order in which they
//! are added, and what holds nothing is left out, as other writers do.

/// A message that is being written.
#[derive(Clone, Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    /// An integer, an enum or a truth value.
    pub fn int(mut self, field: u32, value: i64) -> Message {
        if value != 0 {
            self.tag(field, 0);
            // Negative numbers are their two's complement.
            self.varint(value as u64);
        }
        self
    }

    /// A 64-bit float.
    pub fn double(mut self, field: u32, value: f64) -> Message {
        if value.to_bits() != 0 {
            self.tag(field, 1);
            self.0.extend(value.to_le_bytes());
        }
        self
    }

    /// A 32-bit float of a choice, which is written even where it is zero.
    pub fn chosen_float(mut self, field: u32, value: f32) -> Message {
        self.tag(field, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Words.
    pub fn text(self, field: u32, value: &str) -> Message {
        if value.is_empty() { self } else { self.bytes(field, value.as_bytes()) }
    }

    /// A message inside; also one that holds nothing says that it is there.
    pub fn message(self, field: u32, value: Message) -> Message {
        self.bytes(field, &value.0)
    }

    /// One of several bytes of a kind, which are written even where they are empty.
    pub fn bytes(mut self, field: u32, value: &[u8]) -> Message {
        self.tag(field, 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    /// What stands on the wire.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn tag(&mut self, field: u32, kind: u64) {
        self.varint(u64::from(field) << 3 | kind);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// The other way, for tests.
#[cfg(test)]
pub mod read {
    /// The value of a field.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Field {
        /// An integer.
        Int(u64),
        /// A 64-bit float.
        Double(f64),
        /// A 32-bit float.
        Float(f32),
        /// Words, bytes or a message.
        Bytes(Vec<u8>),
    }

    impl Field {
        /// Words.
        pub fn text(&self) -> String {
            match self {
                Field::Bytes(bytes) => String::from_utf8(bytes.clone()).unwrap(),
                other => panic!("{other:?} is not text"),
            }
        }

        /// The fields of a message inside.
        pub fn fields(&self) -> Vec<(u32, Field)> {
            match self {
                Field::Bytes(bytes) => fields(bytes),
                other => panic!("{other:?} is not a message"),
            }
        }
    }

    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return value;
            }
        }
        unreachable!()
    }

    fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
        let (head, rest) = bytes.split_at(count);
        *bytes = rest;
        head
    }

    /// The fields of a message, in their order.
    pub fn fields(mut bytes: &[u8]) -> Vec<(u32, Field)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let value = match tag & 7 {
                0 => Field::Int(varint(&mut bytes)),
                1 => Field::Double(f64::from_le_bytes(take(&mut bytes, 8).try_into().unwrap())),
                2 => {
                    let count = varint(&mut bytes) as usize;
                    Field::Bytes(take(&mut bytes, count).to_vec())
                }
                5 => Field::Float(f32::from_le_bytes(take(&mut bytes, 4).try_into().unwrap())),
                kind => panic!("wire type {kind}"),
            };
            found.push(((tag >> 3) as u32, value));
        }
        found
    }

    /// The only field of this number.
    pub fn one(fields: &[(u32, Field)], number: u32) -> Field {
        let mut found = fields.iter().filter(|(field, _)| *field == number);
        let (first, rest) = (found.next(), found.next());
        assert!(rest.is_none(), "field {number} stands twice");
        first.unwrap_or_else(|| panic!("no field {number} in {fields:?}")).1.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::read::{Field, fields};
    use super::*;

    #[test]
    fn a_message_is_read_back() {
        let message = Message::default()
            .int(1, 300)
            .int(2, -1)
            .int(3, 0)
            .double(4, 0.5)
            .double(5, 0.0)
            .chosen_float(6, 0.0)
            .text(7, "")
            .text(200, "words")
            .message(9, Message::default())
            .into_bytes();
        assert_eq!(&message[..3], [0x08, 0xac, 0x02], "the example of the format's documentation: 300");
        let expected = vec![
            (1, Field::Int(300)),
            (2, Field::Int(u64::MAX)),
            (4, Field::Double(0.5)),
            (6, Field::Float(0.0)),
            (200, Field::Bytes(b"words".to_vec())),
            (9, Field::Bytes(Vec::new())),
        ];
        assert_eq!(fields(&message), expected);
    }
}
