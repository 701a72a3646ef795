package profile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/internal/text"
)

// columns is the largest width of reports: 80 with fsdprun's prefix of each line.
const columns = 70

// mostRows is the number of ranks in the table of a report: the ranks that the others wait for
// most.
const mostRows = 16

// mostHosts is the number of hosts that are described.
const mostHosts = 4

// fewPasses is the number of passes below which a single one may decide.
const fewPasses = 10

// String names the culprit and the reason, and has a row for each rank.
func (r *Report) String() string {
	var b strings.Builder
	say := func(format string, args ...any) {
		b.WriteString(text.Fill(fmt.Sprintf(format, args...), columns, "") + "\n")
	}
	for i, h := range r.Hosts {
		if i == mostHosts {
			say("%d more hosts share cores or have some that are not in use.", len(r.Hosts)-i)
			break
		}
		say("%s", h.text(len(r.Ranks)))
	}
	if r.Cause == Even {
		say("No rank delays the others.")
	} else {
		say("%s up the others, which wait %.0f %% of their time for it. %s", r.culprits(), 100*r.Share, r.explanation())
	}
	slowest := ""
	if r.Transfers >= 0.01 {
		slowest = fmt.Sprintf(", most in %q", r.Slowest)
	}
	say("Waiting for transfers takes %.0f %% of all time%s.", 100*r.Transfers, slowest)
	if r.Passes < fewPasses && len(r.Culprits) > 0 {
		say("These are only %d passes: a single disturbed pass may cause this.", r.Passes)
	}
	r.table(&b)
	return strings.TrimRight(b.String(), "\n")
}

// text describes how the ranks of a host, of all ranks in total, share its cores.
func (h *Host) text(all int) string {
	who, of := counted(h.Ranks, "rank"), ""
	if h.Ranks < all {
		of = " of " + h.Name
	}
	if h.Threads > h.Ranks {
		who += " with " + counted(h.Threads, "thread")
	}
	if h.Threads > h.Cores {
		return fmt.Sprintf("%s share %s%s: they wait for a core, which counts below as waiting for ranks and transfers. Run fewer ranks there.",
			who, counted(h.Cores, "core"), of)
	}
	return fmt.Sprintf("%s: %d of %s%s in use. More ranks (fsdprun -n) or Config.Threads use the others.", who, h.Threads, counted(h.Cores, "core"), of)
}

// counted returns a number and a noun, in the plural if needed.
func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// This is the subject of "holds": it names the culprits.
func (r *Report) culprits() string {
	if r.Host != "" {
		return fmt.Sprintf("Host %s, %s, holds", r.Host, text.Numbered("rank", r.Culprits))
	}
	who := text.Numbered("rank", r.Culprits)
	for _, rank := range r.Ranks {
		if rank.Rank == r.Culprits[0] && rank.Host != "" && rank.Host != r.Ranks[0].Host {
			who += " on " + rank.Host
		}
	}
	return strings.ToUpper(who[:1]) + who[1:] + " holds"
}

// explanation explains how the culprits differ from the others.
func (r *Report) explanation() string {
	switch r.Cause {
	case ThisCall:
		return fmt.Sprintf("It computes %q in %s where the median of the others needs %s. That call alone is slow.", r.Op, seconds(r.Seconds), seconds(r.Median))
	case EveryCall:
		mine, theirs := r.medians(func(k *Rank) float64 { return k.Calls })
		return fmt.Sprintf("All its calls are slow: they take %.2f times as long as on the other ranks, as on a slow or shared processor. It computes %q in %s where the median of the others needs %s.",
			mine/theirs, r.Op, seconds(r.Seconds), seconds(r.Median))
	case SlowLink:
		mine, theirs := r.medians(func(k *Rank) float64 { return k.Transfers })
		return fmt.Sprintf("Its link is slow, its calls are not: it waits %s a pass for transfers where the median of the others needs %s, most in %q.",
			seconds(mine), seconds(theirs), r.Op)
	default:
		mine, theirs := r.medians(func(k *Rank) float64 { return k.Between })
		return fmt.Sprintf("Its calls and transfers are not slow: between operations it takes %s a pass where the median of the others needs %s, for batches, the optimizer or other code.",
			seconds(mine), seconds(theirs))
	}
}

// medians returns the median of the culprits and the median of the others.
func (r *Report) medians(of func(*Rank) float64) (mine, theirs float64) {
	var a, b []int
	for i := range r.Ranks {
		if slices.Contains(r.Culprits, r.Ranks[i].Rank) {
			a = append(a, i)
		} else {
			b = append(b, i)
		}
	}
	at := func(i int) float64 { return of(&r.Ranks[i]) }
	return median(a, at), median(b, at)
}

// table writes a row for each rank.
func (r *Report) table(b *strings.Builder) {
	rows := slices.Clone(r.Ranks)
	if len(rows) > mostRows {
		slices.SortStableFunc(rows, func(x, y Rank) int { return cmp.Compare(y.Late, x.Late) })
		rows = rows[:mostRows]
		slices.SortFunc(rows, func(x, y Rank) int { return cmp.Compare(x.Rank, y.Rank) })
	}
	fmt.Fprintf(b, "%5s %9s %9s %9s %9s %9s  %s\n", "rank", "ms a pass", "calls", "held", "transfers", "between", "host")
	ms := func(s float64) string { return fmt.Sprintf("%.2f", 1e3*s) }
	for i := range rows {
		k := &rows[i]
		fmt.Fprintf(b, "%5d %9s %9s %9s %9s %9s  %s\n", k.Rank, ms(k.Total), ms(k.Calls), ms(k.Held), ms(k.Transfers), ms(k.Between), text.Cut(k.Host, 14))
	}
	if more := len(r.Ranks) - len(rows); more > 0 {
		fmt.Fprintf(b, "and %d more ranks that the others wait for less\n", more)
	}
	b.WriteString("held: waits for a later rank; transfers: waits for bytes;\nbetween: batches, optimizer, other code\n")
}

// seconds writes a time.
func seconds(s float64) string {
	switch {
	case s >= 10:
		return fmt.Sprintf("%.1f s", s)
	case s >= 1:
		return fmt.Sprintf("%.2f s", s)
	case s >= 0.01:
		return fmt.Sprintf("%.1f ms", 1e3*s)
	default:
		return fmt.Sprintf("%.2f ms", 1e3*s)
	}
}
