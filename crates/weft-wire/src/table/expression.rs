//! The small ALU: expressions in a definition, compiled to programs of a stack machine.
//!
//! `reth.length`, `-payload & 3`, `bth.version == 0`, `min(dma.length, 4096)`: whole numbers of 64 bits, wrapping
//! arithmetic, comparisons that give 1 or 0. There are no jumps, so a program ends; the one way to write something
//! that does not is a name that is derived from itself, which [`Derivations::check`] finds at load.
//!
//! An [`Expression`] still has names in it. For each opcode the compiler links it ([`Expression::link`]) to a
//! [`Program`] whose loads are at fixed places.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::extract::Extract;
use super::source::{DefinitionError, Place, Placed, Sources};
use crate::command::{Command, Slot};
use crate::limits::{DERIVATIONS_MAX, PROGRAM_LENGTH_MAX, PROGRAM_STACK_MAX};

/// What an instruction does with the two topmost values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Add,
    Subtract,
    Multiply,
    ShiftLeft,
    ShiftRight,
    And,
    Or,
    Xor,
    Minimum,
    Maximum,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
}

impl Operation {
    fn apply(self, a: u64, b: u64) -> u64 {
        let amount = u32::try_from(b).unwrap_or(u32::MAX);
        match self {
            Operation::Add => a.wrapping_add(b),
            Operation::Subtract => a.wrapping_sub(b),
            Operation::Multiply => a.wrapping_mul(b),
            // Bits that are shifted out are gone, however far the shift.
            Operation::ShiftLeft => a.checked_shl(amount).unwrap_or(0),
            Operation::ShiftRight => a.checked_shr(amount).unwrap_or(0),
            Operation::And => a & b,
            Operation::Or => a | b,
            Operation::Xor => a ^ b,
            Operation::Minimum => a.min(b),
            Operation::Maximum => a.max(b),
            Operation::Equal => u64::from(a == b),
            Operation::NotEqual => u64::from(a != b),
            Operation::Less => u64::from(a < b),
            Operation::LessOrEqual => u64::from(a <= b),
        }
    }
}

/// A step of an expression, names unresolved, in postfix order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Number(u64),
    Name(String),
    Apply(Operation),
    /// `a > b` is `b < a`.
    Swap,
}

/// A parsed expression.
#[derive(Clone, Debug)]
pub(crate) struct Expression {
    tokens: Vec<Token>,
    /// As messages show it.
    pub(crate) text: String,
    pub(crate) place: Place,
}

/// What a name in an expression stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// A field of the packet.
    Field(Extract),
    /// Bytes of payload, without pad and trailers.
    Payload,
    /// Bytes of all headers of the opcode.
    Headers,
    /// Bytes from the first header to the end of the last trailer.
    Packet,
    /// A value of the connection.
    Connection(Attribute),
    /// A value of the transaction.
    Transaction(Attribute),
    /// A slot of the command that is being encoded.
    Slot(Slot),
}

/// Values of a connection or transaction that a definition may compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Attribute {
    /// Partition or protection key.
    Partition = 0,
    /// Queue key, or the memory key that the transaction was granted.
    Key = 1,
    /// The peer's queue.
    Peer = 2,
    /// Next expected sequence number.
    Sequence = 3,
    /// First address granted.
    Start = 4,
    /// First address behind what is granted.
    End = 5,
    /// Bytes still expected.
    Remaining = 6,
    /// Path MTU.
    Mtu = 7,
}

/// Number of attributes.
pub const ATTRIBUTES: usize = 8;

const ATTRIBUTE_NAMES: [(&str, Attribute); ATTRIBUTES] = [
    ("partition", Attribute::Partition),
    ("key", Attribute::Key),
    ("peer", Attribute::Peer),
    ("sequence", Attribute::Sequence),
    ("start", Attribute::Start),
    ("end", Attribute::End),
    ("remaining", Attribute::Remaining),
    ("mtu", Attribute::Mtu),
];

/// The attributes of one connection or transaction.
pub type Attributes = [u64; ATTRIBUTES];

impl Attribute {
    pub(crate) fn from_name(name: &str) -> Option<Attribute> {
        ATTRIBUTE_NAMES.iter().find(|(known, _)| *known == name).map(|(_, attribute)| *attribute)
    }

    /// This attribute's value.
    #[inline]
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "there are as many places as `Attribute` has values")]
    pub fn of(self, attributes: &Attributes) -> u64 {
        attributes[self as usize]
    }

    /// Attributes with these values, the others zero.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "there are as many places as `Attribute` has values")]
    pub fn collect(values: &[(Attribute, u64)]) -> Attributes {
        let mut attributes = Attributes::default();
        for (attribute, value) in values {
            attributes[*attribute as usize] = *value;
        }
        attributes
    }

    /// All names, for error texts.
    pub fn names() -> impl Iterator<Item = &'static str> + Clone {
        ATTRIBUTE_NAMES.iter().map(|(name, _)| *name)
    }
}

/// What a program can see when it runs.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// From the protocol's first byte.
    pub(crate) bytes: &'a [u8],
    pub(crate) payload: u64,
    pub(crate) headers: u64,
    pub(crate) packet: u64,
    pub(crate) connection: &'a Attributes,
    pub(crate) transaction: &'a Attributes,
    pub(crate) command: Option<&'a Command>,
}

/// One step of a linked program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instruction {
    Constant(u64),
    Load(Operand),
    Apply(Operation),
    Swap,
}

/// A program that is ready to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) code: Vec<Instruction>,
}

impl Program {
    /// Runs to the end; the result is the value on top.
    pub(crate) fn run(&self, inputs: &Inputs<'_>) -> u64 {
        let mut stack = [0u64; PROGRAM_STACK_MAX];
        let mut depth = 0usize;
        for instruction in &self.code {
            let value = match *instruction {
                Instruction::Constant(value) => value,
                Instruction::Load(operand) => inputs.load(operand),
                Instruction::Apply(operation) => {
                    let b = pop(&stack, &mut depth);
                    let a = pop(&stack, &mut depth);
                    operation.apply(a, b)
                }
                Instruction::Swap => {
                    if let Some([.., a, b]) = stack.get_mut(..depth) {
                        core::mem::swap(a, b);
                    }
                    continue;
                }
            };
            if let Some(place) = stack.get_mut(depth) {
                *place = value;
                depth += 1;
            }
        }
        pop(&stack, &mut depth)
    }

    /// The field, when the program is nothing else.
    pub(crate) fn as_field(&self) -> Option<Extract> {
        match self.code.as_slice() {
            [Instruction::Load(Operand::Field(extract))] => Some(*extract),
            _ => None,
        }
    }

    pub(crate) fn is_payload(&self) -> bool {
        matches!(self.code.as_slice(), [Instruction::Load(Operand::Payload)])
    }

    /// Field and constant, when the program only compares them.
    pub(crate) fn as_field_equals(&self) -> Option<(Extract, u64)> {
        match self.code.as_slice() {
            [
                Instruction::Load(Operand::Field(extract)),
                Instruction::Constant(value),
                Instruction::Apply(Operation::Equal),
            ] => Some((*extract, *value)),
            _ => None,
        }
    }

    /// Whether it needs a connection or a transaction.
    pub(crate) fn needs_context(&self) -> bool {
        self.loads().any(|operand| matches!(operand, Operand::Connection(_) | Operand::Transaction(_)))
    }

    /// What it reads.
    pub(crate) fn loads(&self) -> impl Iterator<Item = Operand> {
        self.code.iter().filter_map(|instruction| match instruction {
            Instruction::Load(operand) => Some(*operand),
            _ => None,
        })
    }
}

fn pop(stack: &[u64; PROGRAM_STACK_MAX], depth: &mut usize) -> u64 {
    *depth = depth.saturating_sub(1);
    stack.get(*depth).copied().unwrap_or(0)
}

impl Inputs<'_> {
    fn load(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Field(extract) => extract.read(self.bytes),
            Operand::Payload => self.payload,
            Operand::Headers => self.headers,
            Operand::Packet => self.packet,
            Operand::Connection(attribute) => attribute.of(self.connection),
            Operand::Transaction(attribute) => attribute.of(self.transaction),
            Operand::Slot(slot) => self.command.map_or(0, |command| command.slot(slot)),
        }
    }
}

/// Values that the definition derives, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Derivations(pub(crate) BTreeMap<String, Expression>);

impl Derivations {
    /// Finds a name that is derived from itself, by any way round.
    pub(crate) fn check(&self, sources: &Sources<'_>) -> Result<(), DefinitionError> {
        if let Some((_, first)) = self.0.iter().next().filter(|_| self.0.len() > DERIVATIONS_MAX) {
            let what = format!("{} derived values", self.0.len());
            return Err(sources.error(first.place, what, format!("at most {DERIVATIONS_MAX}")));
        }
        for (name, expression) in &self.0 {
            let mut seen = Vec::new();
            let mut open: Vec<&str> = alloc::vec![name.as_str()];
            while let Some(next) = open.pop() {
                for used in self.0.get(next).into_iter().flat_map(Expression::names) {
                    if used == name {
                        let what = format!("the program of `{name}` cannot end: it is derived from itself");
                        let instead = format!("derive it from fields of the packet only, not from `{next}`");
                        return Err(sources.error(expression.place, what, instead));
                    }
                    if self.0.contains_key(used) && !seen.contains(&used) {
                        seen.push(used);
                        open.push(used);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Expression {
    /// Parses; the error's place is the expression's beginning, its text says where inside.
    pub(crate) fn parse(sources: &Sources<'_>, text: &Placed<String>) -> Result<Expression, DefinitionError> {
        let mut parser = Parser { rest: text.value.as_str(), tokens: Vec::new(), nesting: 0 };
        parser.comparison().and_then(|()| parser.end()).map_err(|(what, instead)| {
            let at = text.value.len() - parser.rest.len();
            sources.error(
                text.place,
                format!("in the expression `{}`, character {}: {what}", quoted(&text.value), at + 1),
                instead,
            )
        })?;
        Ok(Expression { tokens: parser.tokens, text: quoted(&text.value), place: text.place })
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().filter_map(|token| match token {
            Token::Name(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Resolves names through `resolve` and derived names through `derivations`. `Ok(None)`: `resolve` does not have
    /// one of the names here (a header that this opcode lacks).
    pub(crate) fn link(
        &self,
        derivations: &Derivations,
        resolve: &dyn Fn(&str) -> Option<Operand>,
    ) -> Result<Option<Program>, LinkError> {
        let mut code = Vec::new();
        let found = self.link_into(derivations, resolve, &mut code)?;
        let mut depth = 0usize;
        for instruction in &code {
            match instruction {
                Instruction::Constant(_) | Instruction::Load(_) => depth += 1,
                Instruction::Apply(_) => depth -= 1,
                Instruction::Swap => {}
            }
            if depth > PROGRAM_STACK_MAX {
                return Err(LinkError::TooDeep);
            }
        }
        Ok(found.then_some(Program { code }))
    }

    fn link_into(
        &self,
        derivations: &Derivations,
        resolve: &dyn Fn(&str) -> Option<Operand>,
        code: &mut Vec<Instruction>,
    ) -> Result<bool, LinkError> {
        for token in &self.tokens {
            match token {
                Token::Number(value) => code.push(Instruction::Constant(*value)),
                Token::Apply(operation) => code.push(Instruction::Apply(*operation)),
                Token::Swap => code.push(Instruction::Swap),
                Token::Name(name) => {
                    if let Some(derived) = derivations.0.get(name) {
                        // `Derivations::check` ran before: this recursion ends.
                        if !derived.link_into(derivations, resolve, code)? {
                            return Ok(false);
                        }
                    } else {
                        let Some(operand) = resolve(name) else { return Ok(false) };
                        code.push(Instruction::Load(operand));
                    }
                }
            }
            if code.len() > PROGRAM_LENGTH_MAX {
                return Err(LinkError::TooLong);
            }
        }
        Ok(true)
    }
}

/// Why an expression cannot become a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkError {
    TooLong,
    TooDeep,
}

impl LinkError {
    pub(crate) fn explain(self, sources: &Sources<'_>, expression: &Expression) -> DefinitionError {
        let (what, limit) = match self {
            LinkError::TooLong => ("has too many steps", PROGRAM_LENGTH_MAX),
            LinkError::TooDeep => ("holds too many values at once", PROGRAM_STACK_MAX),
        };
        let what = format!("the expression `{}` {what}", expression.text);
        sources.error(expression.place, what, format!("at most {limit}: write a shorter one"))
    }
}

/// An expression as messages show it: a long one is cut.
fn quoted(text: &str) -> String {
    const SHOWN_MAX: usize = 80;
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or("")),
        None => text.to_string(),
    }
}

/// Recursive descent over the text, lowest precedence first. Errors are (what, instead).
struct Parser<'a> {
    rest: &'a str,
    tokens: Vec<Token>,
    nesting: usize,
}

type Parsed = Result<(), (String, String)>;

impl Parser<'_> {
    fn peek(&mut self, symbol: &str) -> bool {
        self.rest = self.rest.trim_start();
        self.rest.starts_with(symbol)
    }

    fn take(&mut self, symbol: &str) -> bool {
        let found = self.peek(symbol);
        if found {
            self.rest = self.rest.get(symbol.len()..).unwrap_or("");
        }
        found
    }

    fn end(&mut self) -> Parsed {
        self.rest = self.rest.trim_start();
        if self.rest.is_empty() { Ok(()) } else { Err(self.unexpected("the end")) }
    }

    fn unexpected(&mut self, wanted: &str) -> (String, String) {
        self.rest = self.rest.trim_start();
        let found = self.rest.chars().next().map_or("the end".to_string(), |c| format!("`{c}`"));
        (
            format!("{found} where {wanted} should be"),
            "an expression is made of numbers, names (header.field), + - * << >> & | ^ ( ) min(a, b) max(a, b) \
             and == != < <= > >="
                .to_string(),
        )
    }

    fn apply(&mut self, operation: Operation) {
        self.tokens.push(Token::Apply(operation));
    }

    fn comparison(&mut self) -> Parsed {
        self.binary(0)?;
        let (operation, swap) = if self.take("==") {
            (Operation::Equal, false)
        } else if self.take("!=") {
            (Operation::NotEqual, false)
        } else if self.take("<=") {
            (Operation::LessOrEqual, false)
        } else if self.take(">=") {
            (Operation::LessOrEqual, true)
        } else if self.take("<") {
            (Operation::Less, false)
        } else if self.take(">") {
            (Operation::Less, true)
        } else {
            return Ok(());
        };
        self.binary(0)?;
        if swap {
            self.tokens.push(Token::Swap);
        }
        self.apply(operation);
        Ok(())
    }

    /// Binary operators by level, loosest first, as in C but for `&` and `|`, which bind tighter than comparisons.
    fn binary(&mut self, level: usize) -> Parsed {
        const LEVELS: [&[(&str, Operation)]; 6] = [
            &[("|", Operation::Or)],
            &[("^", Operation::Xor)],
            &[("&", Operation::And)],
            &[("<<", Operation::ShiftLeft), (">>", Operation::ShiftRight)],
            &[("+", Operation::Add), ("-", Operation::Subtract)],
            &[("*", Operation::Multiply)],
        ];
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        self.binary(level + 1)?;
        while let Some((symbol, operation)) = operators.iter().copied().find(|(symbol, _)| self.peek(symbol)) {
            self.take(symbol);
            self.binary(level + 1)?;
            self.apply(operation);
        }
        Ok(())
    }

    fn unary(&mut self) -> Parsed {
        self.nesting += 1;
        if self.nesting > PROGRAM_STACK_MAX {
            return Err(("too many levels".to_string(), format!("at most {PROGRAM_STACK_MAX} levels of ( and -")));
        }
        let parsed = if self.take("-") {
            self.tokens.push(Token::Number(0));
            let parsed = self.unary();
            self.apply(Operation::Subtract);
            parsed
        } else if self.take("~") {
            let parsed = self.unary();
            self.tokens.push(Token::Number(u64::MAX));
            self.apply(Operation::Xor);
            parsed
        } else {
            self.primary()
        };
        self.nesting -= 1;
        parsed
    }

    fn primary(&mut self) -> Parsed {
        if self.take("(") {
            self.comparison()?;
            return if self.take(")") { Ok(()) } else { Err(self.unexpected("`)`")) };
        }
        self.rest = self.rest.trim_start();
        let length = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
        let (word, rest) = self.rest.split_at(length.unwrap_or(self.rest.len()));
        if word.is_empty() {
            return Err(self.unexpected("a number or a name"));
        }
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let digits = word.replace('_', "");
            let number = match digits.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16),
                None => digits.parse(),
            };
            let bad =
                |_| (format!("`{word}` is no number"), "write a decimal or a 0x… number of at most 64 bits".into());
            self.tokens.push(Token::Number(number.map_err(bad)?));
            self.rest = rest;
            return Ok(());
        }
        self.rest = rest;
        let function = match word {
            "min" => Operation::Minimum,
            "max" => Operation::Maximum,
            name => {
                self.tokens.push(Token::Name(name.to_string()));
                return Ok(());
            }
        };
        let parts = ["(", ",", ")"];
        for (index, symbol) in parts.iter().enumerate() {
            if !self.take(symbol) {
                return Err(self.unexpected(&format!("`{symbol}`")));
            }
            if index < 2 {
                self.comparison()?;
            }
        }
        self.apply(function);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::source::Source;

    fn placed(text: &str) -> Placed<String> {
        Placed { value: text.into(), place: Place::default() }
    }

    fn parse(text: &str) -> Result<Expression, DefinitionError> {
        let files = [Source { file: "x", text: "" }];
        Expression::parse(&Sources(&files), &placed(text))
    }

    fn value(text: &str) -> u64 {
        let names = |name: &str| match name {
            "payload" => Some(Operand::Payload),
            "transaction.end" => Some(Operand::Transaction(Attribute::End)),
            _ => None,
        };
        let program = parse(text).unwrap().link(&Derivations::default(), &names).unwrap().unwrap();
        program.run(&Inputs {
            bytes: &[],
            payload: 5,
            headers: 12,
            packet: 0,
            connection: &[0; 8],
            transaction: &[1, 2, 3, 4, 5, 600, 7, 8],
            command: None,
        })
    }

    #[test]
    fn arithmetic_and_precedence() {
        assert_eq!(value("1 + 2 * 3"), 7);
        assert_eq!(value("(1 + 2) * 3"), 9);
        assert_eq!(value("10 - 3 - 2"), 5);
        assert_eq!(value("-payload & 3"), 3);
        assert_eq!(value("0xff_00 >> 8 & 0x0f"), 15);
        assert_eq!(value("~0 >> 60"), 15);
        assert_eq!(value("1 << 64"), 0);
        assert_eq!(value("1 << 0xffffffffffffffff"), 0);
        assert_eq!(value("min(payload, 3) + max(2, 4)"), 7);
        assert_eq!(value("payload <= 5"), 1);
        assert_eq!(value("payload > 5"), 0);
        assert_eq!(value("6 >= payload"), 1);
        assert_eq!(value("payload & 4 == 4"), 1, "& binds tighter than ==");
        assert_eq!(value("transaction.end - payload"), 595);
        assert_eq!(value("0 - 1"), u64::MAX);
    }

    #[test]
    fn mistakes_are_explained() {
        for (text, wanted) in [
            ("1 +", "character 4: the end where a number or a name"),
            ("(1", "`)`"),
            ("1 2", "`2` where the end"),
            ("99999999999999999999", "no number"),
            ("min(1 2)", "`,`"),
            ("a $ b", "`$`"),
            ("", "the end where a number"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        let deep = "(".repeat(100) + "1" + &")".repeat(100);
        assert!(parse(&deep).unwrap_err().to_string().contains("too many levels"));
        let long = alloc::vec!["1"; 100].join("+");
        assert_eq!(parse(&long).unwrap().link(&Derivations::default(), &|_| None), Err(LinkError::TooLong));
    }

    #[test]
    fn a_name_derived_from_itself_is_found() {
        let files = [Source { file: "x", text: "" }];
        let derivations = |pairs: &[(&str, &str)]| {
            Derivations(pairs.iter().map(|(name, text)| (name.to_string(), parse(text).unwrap())).collect())
        };
        assert!(derivations(&[("a", "b + 1"), ("b", "c"), ("c", "payload")]).check(&Sources(&files)).is_ok());
        for loops in [&[("a", "a + 1")][..], &[("a", "b"), ("b", "c"), ("c", "a")], &[("z", "y"), ("y", "y")]] {
            let error = derivations(loops).check(&Sources(&files)).unwrap_err();
            assert!(error.what.contains("cannot end"), "{error}");
        }
        // Doubling forty times would be 2^40 steps: the limit stops it early.
        let names: Vec<(String, String)> =
            (0..40).map(|i| (format!("d{i}"), format!("d{} + d{}", i + 1, i + 1))).collect();
        let mut doubling = derivations(&names.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>());
        doubling.0.insert("d40".into(), parse("1").unwrap());
        assert!(doubling.check(&Sources(&files)).is_ok());
        assert_eq!(parse("d0").unwrap().link(&doubling, &|_| None), Err(LinkError::TooLong));
    }

    #[test]
    fn a_long_chain_of_derived_values_is_refused_before_it_is_followed() {
        // Ten thousand names, each another name for the next: a cubic search, then a recursion as deep.
        let files = [Source { file: "x", text: "" }];
        let chain = (0..10_000).map(|i| (format!("d{i}"), parse(&format!("d{}", i + 1)).unwrap())).collect();
        let error = Derivations(chain).check(&Sources(&files)).unwrap_err();
        assert!(error.to_string().contains("10000 derived values; at most 64"), "{error}");
    }
}
