//! Cells put under each other.

/// The widest that the first column becomes: a longer name moves its own row's cells only.
const FIRST_MAX: usize = 48;

/// Rows of cells as lines: all columns to the left but those in `right`. The first row has the titles; a column that is
/// empty but for its title is left out, and so are blanks at the ends of lines. An empty row is an empty line.
pub(crate) fn lines<const N: usize>(rows: &[[String; N]], right: &[usize]) -> String {
    let length = |row: &[String; N], column: usize| row[column].chars().count();
    let mut widths = [0; N];
    for (column, width) in widths.iter_mut().enumerate() {
        let is_used = rows[1..].iter().any(|row| !row[column].is_empty());
        let cells = rows.iter().filter(|_| is_used).map(|row| length(row, column));
        let most = if column == 0 { FIRST_MAX } else { usize::MAX };
        *width = cells.filter(|cell| *cell <= most).max().unwrap_or(0);
    }
    let mut text = String::new();
    for row in rows {
        let start = text.len();
        for (column, cell) in row.iter().enumerate().filter(|(column, _)| widths[*column] > 0) {
            let pad = " ".repeat(widths[column].saturating_sub(length(row, column)));
            if right.contains(&column) {
                text.extend([&*pad, cell, "  "]);
            } else {
                text.extend([&**cell, &pad, "  "]);
            }
        }
        text.truncate(text[start..].trim_end().len() + start);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells_and_empty_ones_are_left_out() {
        let row = |cells: [&str; 4]| cells.map(str::to_owned);
        let long = "n".repeat(FIRST_MAX + 1);
        let rows =
            [row(["NAME", "SIZE", "LABEL", "STATE"]), row(["a", "1.5K", "", "x"]), row([&long, "2", "", ""])];
        assert_eq!(lines(&rows, &[1]), format!("NAME  SIZE  STATE\na     1.5K  x\n{long}     2\n"));
    }
}
