package repository_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	promising   = regexp.MustCompile(`(?i)\b(always|never|each|every|guarantee[sd]?)\b`)
	unpromising = regexp.MustCompile("(?i)\\beach other\\b|`[^`]*`")
	codeBlock   = regexp.MustCompile("(?ms)^```.*?^```$")
	indented    = regexp.MustCompile(`(?m)^\t.*$`)
	paragraph   = regexp.MustCompile(`\n\s*\n|\n *[-*] |\n\d+\. |\n\|| \| `)
	sentence    = regexp.MustCompile(`[.!?:;]\s`)
	promise     = regexp.MustCompile(`(?m)^\| ([\w./, -]+) \| (".+") \| .+ \|$`)
)

// Sentences that promise have a row in the list of CONTRIBUTING.md, which quotes them and names
// their tests.
func TestPromisesAreListed(t *testing.T) {
	texts := promisingTexts(t)
	quotes := map[string][]string{} // by file
	_, list, _ := strings.Cut(read(t, "CONTRIBUTING.md"), "## Promises")
	for _, row := range promise.FindAllStringSubmatch(list, -1) {
		for _, file := range strings.Split(row[1], ", ") {
			for _, quote := range strings.Split(strings.Trim(row[2], `"`), `" "`) {
				quotes[file] = append(quotes[file], quote)
				if !strings.Contains(flat(texts[file]), quote) {
					t.Errorf("%s does not say %q, which the list of CONTRIBUTING.md quotes", file, quote)
				}
			}
		}
	}
	seen := 0
	for file, text := range texts {
		for _, s := range sentences(text) {
			if !promising.MatchString(unpromising.ReplaceAllString(s, "")) {
				continue
			}
			if seen++; !slices.ContainsFunc(quotes[file], func(q string) bool { return strings.Contains(s, q) }) {
				t.Errorf("%s: name the test of this sentence in the list of CONTRIBUTING.md, or write it without promise:\n\t%s", file, s)
			}
		}
	}
	if seen < 100 {
		t.Errorf("%d sentences were found: this test does not see them", seen)
	}
}

// promisingTexts are the texts whose promises are listed, by file: of Go files the documentation of
// the package and the comments of exported names, without their code.
func promisingTexts(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, page := range []string{"guide", "jobs", "operations", "observing", "command-line", "migrating", "runbook", "architecture"} {
		file := "docs/" + page + ".md"
		all[file] = codeBlock.ReplaceAllString(read(t, file), "")
	}
	all["README.md"] = codeBlock.ReplaceAllString(read(t, "README.md"), "")
	for _, folder := range documented {
		files, err := filepath.Glob(path.Join(folder, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", folder, files, err)
		}
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(file, "_test.go") {
				all[filepath.ToSlash(file)] = indented.ReplaceAllString(commentsOfExported(parsed), "")
			}
		}
	}
	return all
}

// commentsOfExported are the comments of a file that go doc may show, as paragraphs. Methods of an
// unexported type are among them: the type may be embedded. What is not exported is removed from file.
func commentsOfExported(file *ast.File) string {
	var all []string
	ast.FileExports(file)
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CommentGroup:
			all = append(all, n.Text())
		case *ast.FuncDecl:
			n.Body = nil
		}
		return true
	})
	return strings.Join(all, "\n")
}

// sentences are those of a text, without headings.
func sentences(text string) (all []string) {
	for _, p := range paragraph.Split(text, -1) {
		if p = flat(p); strings.HasPrefix(p, "#") {
			continue
		}
		from := 0
		for _, end := range sentence.FindAllStringIndex(p, -1) {
			all = append(all, p[from:end[0]])
			from = end[1]
		}
		all = append(all, p[from:])
	}
	return all
}

func flat(text string) string { return strings.Join(strings.Fields(text), " ") }
