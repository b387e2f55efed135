package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
)

// ceilings is the file with the ceilings, below the root.
const ceilings = "internal/lab/gauges/ceilings.txt"

// gauge is one figure of the table.
type gauge struct {
	name          string
	now           int
	ceiling, goal int
	where         string // which type, function or file it is, or ""
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet("gauges", flag.ContinueOnError)
	f.SetOutput(stderr)
	root := f.String("root", ".", "the `folder` of the module")
	check := f.Bool("check", false, "fail if a gauge is above its ceiling")
	lower := f.Bool("lower", false, "lower the ceilings to what is measured")
	byFolder := f.Bool("folders", false, "print references upwards, and the largest type and function, by folder")
	if f.Parse(args) != nil || f.NArg() > 0 {
		return 2
	}
	fail := func(err error) int {
		fmt.Fprintln(stderr, err)
		return 2
	}
	folders, err := load(*root)
	if err != nil {
		return fail(err)
	}
	if *byFolder {
		printFolders(stdout, folders)
		return 0
	}
	gauges, err := measure(*root, folders)
	if err != nil {
		return fail(err)
	}
	path := filepath.Join(*root, ceilings)
	text, err := os.ReadFile(path)
	if err != nil {
		return fail(fmt.Errorf("gauges: %w", err))
	}
	if err := readCeilings(string(text), gauges); err != nil {
		return fail(err)
	}
	switch {
	case *lower:
		if err := os.WriteFile(path, []byte(writeCeilings(string(text), gauges)), 0o644); err != nil {
			return fail(fmt.Errorf("gauges: %w", err))
		}
	case *check:
		return judge(stderr, gauges)
	default:
		print(stdout, gauges)
	}
	return 0
}

// measure returns all gauges, without ceilings.
func measure(root string, all []*folder) ([]gauge, error) {
	var library, sim []*folder
	for _, f := range all {
		if f.library() {
			library = append(library, f)
		}
		if f.under("sim") {
			sim = append(sim, f)
		}
	}
	top, err := atTop(root)
	if err != nil {
		return nil, err
	}
	ups := 0
	for _, f := range all {
		_, up := order(len(f.files), references(f))
		ups += up
	}
	climbing, err := climbs(library)
	if err != nil {
		return nil, err
	}
	largest := largestTypes(library)
	function, sql := lengths(library)
	file, err := longestFile(root, library)
	if err != nil {
		return nil, err
	}
	sql.offer(file.name, file.lines)
	libraryLines, libraryCode, err := lines(root, library)
	if err != nil {
		return nil, err
	}
	simLines, _, err := lines(root, sim)
	if err != nil {
		return nil, err
	}
	documentWords, err := words(root, all)
	if err != nil {
		return nil, err
	}
	return []gauge{
		{name: "files-at-top", now: top},
		{name: "references-upwards", now: ups},
		{name: "calls-upwards", now: climbing},
		{name: "type-methods", now: largest.methods, where: largest.name},
		{name: "type-files", now: largest.files, where: largest.name},
		{name: "function-lines", now: function.lines, where: function.name},
		{name: "sql-lines", now: sql.lines, where: sql.name},
		{name: "exported-names", now: exported(library)},
		{name: "library-lines", now: libraryLines},
		{name: "library-code", now: libraryCode},
		{name: "document-words", now: documentWords},
		{name: "sim-lines", now: simLines},
	}, nil
}

// readCeilings sets the ceilings and goals of the gauges from lines of name, ceiling and goal.
func readCeilings(text string, gauges []gauge) error {
	found := map[string][2]int{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 3 {
			return fmt.Errorf("gauges: %s has the line %q: write name, ceiling and goal", ceilings, strings.TrimSpace(line))
		}
		ceiling, err := strconv.Atoi(fields[1])
		if err != nil {
			return fmt.Errorf("gauges: the ceiling of %s: %w", fields[0], err)
		}
		goal, err := strconv.Atoi(fields[2])
		if err != nil {
			return fmt.Errorf("gauges: the goal of %s: %w", fields[0], err)
		}
		found[fields[0]] = [2]int{ceiling, goal}
	}
	for i := range gauges {
		g := &gauges[i]
		both, ok := found[g.name]
		if !ok {
			return fmt.Errorf("gauges: %s has no line for %s: add its ceiling, %d, and its goal", ceilings, g.name, g.now)
		}
		g.ceiling, g.goal = both[0], both[1]
		delete(found, g.name)
	}
	for name := range found {
		return fmt.Errorf("gauges: %s has a line for %s, which is not measured: remove it", ceilings, name)
	}
	return nil
}

// writeCeilings returns text with each ceiling lowered to what is measured, and none raised.
func writeCeilings(text string, gauges []gauge) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		for _, g := range gauges {
			if fields := strings.Fields(line); len(fields) == 3 && fields[0] == g.name {
				line = fmt.Sprintf("%-20s %6d %6d\n", g.name, min(g.now, g.ceiling), g.goal)
			}
		}
		b.WriteString(line)
	}
	return b.String()
}

// judge prints the gauges above their ceilings and returns the exit status.
func judge(w io.Writer, gauges []gauge) (status int) {
	for _, g := range gauges {
		if g.now > g.ceiling {
			fmt.Fprintf(w, "gauges: %s is %d%s, above its ceiling %d: make it smaller, or raise the ceiling in %s and say why in the commit\n", g.name, g.now, in(g), g.ceiling, ceilings)
			status = 1
		}
	}
	return status
}

func in(g gauge) string {
	if g.where == "" {
		return ""
	}
	return " (" + g.where + ")"
}

func print(w io.Writer, gauges []gauge) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "gauge\tnow\tceiling\tgoal\t")
	for _, g := range gauges {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\n", g.name, g.now, g.ceiling, g.goal, g.where)
	}
	t.Flush()
}

func printFolders(w io.Writer, folders []*folder) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "folder\tfiles\treferences\tupwards\tlargest type\tlongest function\t")
	for _, f := range folders {
		refs := references(f)
		_, up := order(len(f.files), refs)
		one := []*folder{f}
		largest := largestTypes(one)
		function, _ := lengths(one)
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s %d, %d files\t%s %d\n", f.dir, len(f.files), len(refs), up, largest.name, largest.methods, largest.files, function.name, function.lines)
	}
	t.Flush()
}
