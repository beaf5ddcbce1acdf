//! The text: what is read and refused, with which line, within which limits; and that printing loses nothing.

use proptest::prelude::*;

use super::*;
use crate::ErrorKind;

fn parse(text: &str) -> Section {
    Section::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn refusal(text: &[u8]) -> String {
    Section::parse(text).unwrap_err().to_string()
}

#[test]
fn what_lvm_reads_is_read_and_printed_as_lvm_prints_it() {
    let tree = parse(
        "# head\na = 1 # one\nb=-2\n c = [ \"x\\\"\\\\\" , 010, 'single\\', 1.50, ] d { e { } f=[] }\n\
         g = auto\n\"h#\" = +7",
    );
    assert_eq!(tree.get("b"), Some(&Node::from(-2)));
    assert_eq!(
        String::from_utf8(tree.print(Style::File)).unwrap(),
        "a = 1\nb = -2\nc = [\"x\\\"\\\\\", 8, \"single\\\\\", 1.50]\nd {\n\n\te {\n\t}\n\tf = []\n}\n\
         g = \"auto\"\n\"h#\" = 7\n"
    );
    assert_eq!(tree.entry("g").unwrap().line, 5);
}

#[test]
fn a_text_ends_at_its_nul_and_nothing_may_follow_it() {
    assert_eq!(Section::parse(b"a = 1\n\0\0").unwrap(), parse("a = 1"));
    assert!(refusal(b"a = 1\n\0b = 2").contains("a NUL and more behind it"));
}

#[test]
fn wrong_syntax_is_refused_with_its_line() {
    for (text, expected) in [
        ("a = 1\nb", "line 2: what follows a key is the end of the text, expected = or {"),
        ("a {\nb = 1\n", "line 3: a section is the end of the text, expected a } that closes it"),
        ("}", "line 1: a key is \"}\", expected a name"),
        ("a = [1\n2]", "line 2: what follows an element of an array is \"2]\", expected , or ]"),
        ("a = [[1]]", "line 1: a value is \"[1]]\", expected a number, a string or an array of them"),
        ("a = \"x\n", "line 2: a string is the end of the text, expected a closing \" (opened in line 1)"),
        ("a = \"x\\", "line 1: a string is the end of the text"),
        ("a = 9223372036854775808", "line 1: a number is 9223372036854775808, expected 63 bits"),
        ("a = 09", "line 1: a number is 09"),
        ("a = -", "line 1: a number is -"),
        ("a = 1.2.3", "line 1: a number is 1.2.3, expected digits and one point"),
        ("a = .", "line 1: a number is ., expected digits and one point"),
        ("a = x,y", "line 1: a string without quotes is x,y"),
        ("a/b = 1", "line 1: a key is a/b, expected UTF-8 without / and control characters"),
        ("\"\" = 1", "line 1: a key is"),
        ("a = 1\nb = 1\na {}", "line 3: a key is \"a\" again, as in line 1, expected each key once"),
        ("a {}\nb = 1\na {}", "line 3: a key is \"a\" again, as in line 1, expected each key once"),
        ("a = 1\x1b[2J", "line 1: a key is \\u{1b}[2J"),
    ] {
        let found = refusal(text.as_bytes());
        assert!(found.contains(expected), "{text:?}: {found}");
    }
    assert!(refusal(b"\xff = 1").contains("a key is \u{fffd}"));
}

#[test]
fn of_several_values_of_a_key_the_first_counts_and_that_is_noted() {
    let text = "b = 0\na = 1\nc { a = 3\na = 4 }\nb = 2\na = [5]\na = 6\nd = 7";
    let (tree, again) = Section::parse_noting(text.as_bytes()).unwrap();
    assert_eq!(tree, parse("b = 0 a = 1 c { a = 3 } d = 7"));
    let again = again.unwrap().to_string();
    let expected = "LVM2 metadata, line 4: a key is \"a\" again, as in line 3, expected each key once; \
                    the first one counts, as for LVM";
    assert_eq!(again, expected);
    assert_eq!(Section::parse_noting(b"a = 1 b { a = 1 }").unwrap().1, None);
}

#[test]
fn numbers_to_the_ends_of_63_bits_are_read_and_a_creation_time_of_an_old_bug_too() {
    let tree = parse("a = 9223372036854775807 b = -9223372036854775808 creation_time = 18446744073709551615");
    assert_eq!(tree.get("a"), Some(&Node::from(i64::MAX)));
    assert_eq!(tree.get("b"), Some(&Node::from(i64::MIN)));
    assert_eq!(tree.get("creation_time"), Some(&Node::from(1_527_120_000)));
}

#[test]
fn limits_are_kept_and_named() {
    let nested = |depth: usize| [vec!["a {"; depth], vec!["}"; depth]].concat().join("\n");
    parse(&nested(DEPTH_MAX));
    assert!(
        refusal(nested(DEPTH_MAX + 1).as_bytes()).contains("nesting of sections is 33, expected at most 32")
    );
    assert!(refusal("a {".repeat(100_000).as_bytes()).contains("nesting"));

    parse(&format!("{} = 1", "k".repeat(KEY_BYTES_MAX)));
    assert!(
        refusal(format!("{} = 1", "k".repeat(KEY_BYTES_MAX + 1)).as_bytes())
            .contains("bytes of a key is 257")
    );

    let array = |elements: usize| format!("a = [{}]", "1,".repeat(elements));
    parse(&array(ENTRIES_MAX - 1));
    let error = Section::parse(array(ENTRIES_MAX).as_bytes()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Limit);
    assert!(error.to_string().contains("keys and elements is more than 1048576"), "{error}");

    let error = Section::parse(&vec![b' '; crate::lvm2::TEXT_BYTES_MAX + 1]).unwrap_err();
    assert_eq!((error.kind, error.field), (ErrorKind::Limit, "length"));
}

#[test]
fn keys_are_changed_in_their_place_and_new_ones_go_to_the_end() {
    let mut tree = parse("a = 1 b { c = 2 } d = [3]");
    tree.set("a", "x".into());
    tree.section_mut("b").unwrap().set("e", 5.into());
    tree.set("f", Node::Array(Vec::new()));
    assert_eq!(tree.remove("d"), Some(Node::Array(vec![3.into()])));
    assert_eq!(tree.remove("d"), None);
    assert_eq!(tree, parse("a = \"x\" b { c = 2 e = 5 } f = []"));
    tree.sort_for_disk();
    assert_eq!(tree, parse("b { c = 2 e = 5 } a = \"x\" f = []"));
    tree.sort_for_file();
    assert_eq!(tree, parse("a = \"x\" f = [] b { c = 2 e = 5 }"));
    assert!(tree != parse("a = \"x\" f = [] b { e = 5 c = 2 }"), "order counts");
}

#[test]
fn a_new_key_goes_behind_those_that_come_before_it_and_a_renamed_one_stays_where_it_is() {
    let mut tree = parse("id = 1 status = 2 size = 3");
    tree.set_behind(&["id", "status", "flags"], "tags", 4.into());
    tree.set_behind(&["nothing"], "first", 5.into());
    tree.set_behind(&["id"], "size", 6.into());
    tree.rename("id", "uuid");
    tree.rename("none", "x");
    assert_eq!(tree, parse("first = 5 uuid = 1 status = 2 tags = 4 size = 6"));
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::Integer),
        "[+-]?[0-9]{0,5}\\.[0-9]{1,5}".prop_map(Value::Decimal),
        proptest::collection::vec(1u8.., 0..20).prop_map(Value::String),
        "[a-z\"\\\\\n#{}]{0,8}".prop_map(|text| Value::from(text.as_str())),
    ]
}

/// Keys that LVM writes, at which printing makes blank lines, and any others.
fn any_key() -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::sample::select(vec![
            "contents",
            "creation_time",
            "physical_volumes",
            "logical_volumes",
            "segment_count",
            "extent_count",
            "stripes",
            "raids",
            "device",
            "message1",
            "allocation_policy",
        ])
        .prop_map(str::to_owned),
        "[a-z0-9_+.-]{1,6}",
        "[^/\\p{Cc}]{1,6}",
    ]
}

fn any_section() -> impl Strategy<Value = Section> {
    let leaf = prop_oneof![
        any_value().prop_map(Node::Value),
        proptest::collection::vec(any_value(), 0..6).prop_map(Node::Array),
    ];
    let node = leaf.prop_recursive(6, 60, 8, |inner| {
        proptest::collection::btree_map(any_key(), inner, 0..8).prop_map(|map| Node::Section(section(map)))
    });
    proptest::collection::btree_map(any_key(), node, 0..8).prop_map(section)
}

fn section(map: std::collections::BTreeMap<String, Node>) -> Section {
    Section { entries: map.into_iter().map(|(key, node)| Entry { key, line: 0, node }).collect() }
}

proptest! {
    #[test]
    fn a_tree_that_is_printed_and_parsed_is_the_same_tree(tree in any_section()) {
        for style in [Style::Disk, Style::File] {
            let text = tree.print(style);
            let again = Section::parse(&text);
            prop_assert_eq!(again.as_ref(), Ok(&tree), "{}", String::from_utf8_lossy(&text));
            prop_assert_eq!(again.unwrap().print(style), text);
        }
    }

    #[test]
    fn any_bytes_are_a_tree_or_an_error_that_can_be_printed(
        text in proptest::collection::vec(prop_oneof![any::<u8>(), proptest::sample::select(b"a={}[]\",'#\n 1.\\".to_vec())], 0..80),
    ) {
        match Section::parse(&text) {
            Ok(tree) => prop_assert_eq!(Section::parse(&tree.print(Style::Disk)), Ok(tree)),
            Err(error) => prop_assert!(!error.to_string().contains(|c: char| c.is_control()), "{}", error),
        }
    }
}
