//! Rows with a parity, by arithmetic that is not the one which is tested: what each member of a row has, or should have by the others, and
//! whether that fits together.

use blockwork_engine::Gf256;
use blockwork_format::md::ParityLayout;

pub type Bytes = [u8; 512];

/// A sector of each member, at the same place of all.
pub struct Row {
    /// By role: what it has, or what is computed for it; none: too much is missing.
    pub all: Vec<Option<Bytes>>,
    /// No parity that is there contradicts the data that are.
    pub fits: bool,
}

impl Row {
    /// Of row `number`, what is there by role.
    pub fn solve(layout: &ParityLayout, number: u64, held: Vec<Option<Bytes>>) -> Row {
        let data: Vec<u16> = (0..layout.data_disks()).map(|nth| layout.member(number, nth)).collect();
        let (p, q) = layout.parity(number);
        let parities: Vec<u16> = [Some(p), q].into_iter().flatten().collect();
        let weight = |parity: u16, member: u16| match parity == p {
            true => Gf256::ONE,
            false => Gf256::power_of_two(layout.exponent(number, member).into()),
        };
        let sum = |parity: u16, of: &[Option<Bytes>]| {
            let mut sum = [0; 512];
            for member in &data {
                if let Some(bytes) = &of[usize::from(*member)] {
                    weight(parity, *member).add_times(bytes, &mut sum);
                }
            }
            sum
        };
        let mut all = held.clone();
        let is_there = |role: &&u16| held[usize::from(**role)].is_some();
        let lost: Vec<u16> = data.iter().filter(|role| !is_there(role)).copied().collect();
        let known: Vec<u16> = parities.iter().filter(is_there).copied().collect();
        // What the data that are not there have to add up to.
        let rest = |parity: u16| {
            let mut rest = sum(parity, &held);
            Gf256::ONE.add_times(&held[usize::from(parity)].expect("it is there"), &mut rest);
            rest
        };
        match (&lost[..], &known[..]) {
            ([], _) => {}
            ([one], [by, ..]) => {
                let mut bytes = [0; 512];
                (Gf256::ONE / weight(*by, *one)).add_times(&rest(*by), &mut bytes);
                all[usize::from(*one)] = Some(bytes);
            }
            ([one, other], [p, q]) => {
                // one + other = p, and by their weights q.
                let (of_one, of_other) = (weight(*q, *one), weight(*q, *other));
                let (p, mut first) = (rest(*p), rest(*q));
                of_other.add_times(&p, &mut first);
                let mut bytes = [0; 512];
                (Gf256::ONE / (of_one + of_other)).add_times(&first, &mut bytes);
                all[usize::from(*one)] = Some(bytes);
                Gf256::ONE.add_times(&p, &mut bytes);
                all[usize::from(*other)] = Some(bytes);
            }
            _ => return Row { all, fits: true },
        }
        let mut fits = true;
        for parity in parities {
            let sum = sum(parity, &all);
            let held = all[usize::from(parity)].get_or_insert(sum);
            fits &= *held == sum;
        }
        Row { all, fits }
    }

    /// As it is when its parities are computed from its data.
    pub fn made_to_fit(layout: &ParityLayout, number: u64, mut all: Vec<Option<Bytes>>) -> Row {
        let (p, q) = layout.parity(number);
        [Some(p), q].into_iter().flatten().for_each(|parity| all[usize::from(parity)] = None);
        Row::solve(layout, number, all)
    }
}

#[test]
fn what_is_missing_of_a_row_is_found_by_the_others_and_what_does_not_fit_is_seen() {
    use blockwork_format::md::Level;
    for (level, number, lost) in [
        (Level::Raid4, 0, 1),
        (Level::Raid5, 2, 1),
        (Level::Raid6, 2, 2),
        (Level::Raid6, 10, 2),
        (Level::Raid6, 18, 2),
    ] {
        let layout = ParityLayout::new(level, number, 5).expect("a layout");
        for row in 0..5 {
            let all = (0..5).map(|role| Some([17 * role + row as u8 + 3; 512])).collect();
            let whole = Row::made_to_fit(&layout, row, all);
            assert!(whole.fits && whole.all.iter().all(Option::is_some));
            for (one, other) in (0..5).flat_map(|one| (0..5).map(move |other| (one, other))) {
                let mut held = whole.all.clone();
                held[one] = None;
                if lost == 2 {
                    held[other] = None;
                }
                let found = Row::solve(&layout, row, held.clone());
                assert!(found.fits && found.all == whole.all, "{layout}, row {row}: {one} and {other}");
                held = whole.all.clone();
                held[other].as_mut().expect("it is there")[511] ^= 1;
                assert!(!Row::solve(&layout, row, held).fits, "{layout}, row {row}: {other}");
            }
        }
    }
}
