"""Rows into Markdown tables: medians, and the ratio of ours to the best of the others."""

import statistics

OURS = "blockwork"


def median(rows, value, **match):
    found = [row[value] for row in rows
             if row.get(value) is not None and all(row.get(key) == wanted for key, wanted in match.items())]
    return statistics.median(found) if found else None


def show(number):
    if number is None:
        return ""
    if number >= 10000:
        return f"{number / 1000:.1f}K"
    return f"{number:.0f}" if number >= 100 else f"{number:.2f}" if number < 10 else f"{number:.1f}"


def show_ratio(ratio):
    return f"{ratio:.2g}" if ratio < 0.1 else f"{ratio:.2f}"


def ratio_of(ours, others, better):
    """Ours : the best other. `better` is max (rates) or min (costs)."""
    others = [other for other in others if other is not None]
    return ours / better(others) if ours is not None and others and better(others) else None


def table(title, rows, keys, peers, value, better, rivals=None):
    """One line per distinct `keys`, one column per peer, and ours against the best of `rivals` (default: all others
    with the value)."""
    present = [peer for peer in peers if any(row["peer"] == peer and row.get(value) is not None for row in rows)]
    if not present:
        return []
    rivals = [peer for peer in (rivals or present) if peer != OURS and peer in present]
    cells = list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows))
    with_ratio = OURS in present and bool(rivals)
    heads = list(keys) + present + ([f"{OURS} : best of {', '.join(rivals)}"] if with_ratio else [])
    lines = [f"**{title}**", "", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    ratios = []
    for cell in cells:
        values = {peer: median(rows, value, peer=peer, **dict(zip(keys, cell))) for peer in present}
        line = [str(key) for key in cell] + [show(values[peer]) for peer in present]
        if with_ratio:
            ratio = ratio_of(values[OURS], [values[peer] for peer in rivals], better)
            ratios.append(ratio)
            line.append("" if ratio is None else show_ratio(ratio))
        lines.append("| " + " | ".join(line) + " |")
    ratios = [ratio for ratio in ratios if ratio is not None]
    if ratios:
        worst = min(ratios) if better is max else max(ratios)
        lines += ["", f"Ratio: median {show_ratio(statistics.median(ratios))}, worst {show_ratio(worst)} "
                      f"({'higher' if better is max else 'lower'} is better)."]
    return lines + [""]


def errors(rows):
    found = [f"- error, {row['peer']} ({row.get('client', 'nbdload')} {row.get('rw', '')}): {row['error'].strip()}"
             for row in rows if row.get("error")]
    return list(dict.fromkeys(found)) + [""]
