package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const tierPackage = "github.com/pgfrontier/worker/internal/lab/tier"

// testFiles are the tests of all modules below a directory.
type testFiles struct {
	tests map[string]map[string]bool // by directory and name: whether it is of the long tier
	calls []longCall
}

// longCall is a call of tier.Long.
type longCall struct {
	dir, place string // place is file:line
	args       []ast.Expr
}

// parseTests parses the files of tests below root, in all modules.
func parseTests(root string) (testFiles, error) {
	t := testFiles{tests: map[string]map[string]bool{}}
	files := token.NewFileSet()
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if name := d.Name(); file != root && (name == "testdata" || strings.HasPrefix(name, ".")) {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(file, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(files, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err == nil {
			t.add(files, f, filepath.ToSlash(name))
		}
		return err
	})
	return t, err
}

// add adds the tests of a file, and its calls of Long.
func (t *testFiles) add(files *token.FileSet, f *ast.File, name string) {
	dir, imported := path.Dir(name), importName(f)
	isLong := func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return false
		}
		selector, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || selector.Sel.Name != "Long" {
			return false
		}
		x, ok := selector.X.(*ast.Ident)
		return ok && x.Name == imported
	}
	for _, d := range f.Decls {
		function, ok := d.(*ast.FuncDecl)
		if !ok || function.Recv != nil || function.Body == nil || !testName.MatchString(function.Name.Name) {
			continue
		}
		if t.tests[dir] == nil {
			t.tests[dir] = map[string]bool{}
		}
		t.tests[dir][function.Name.Name] = slices.ContainsFunc(function.Body.List, func(s ast.Stmt) bool {
			e, ok := s.(*ast.ExprStmt)
			return ok && isLong(e.X)
		})
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if isLong(n) {
			call := n.(*ast.CallExpr)
			place := fmt.Sprintf("%s:%d", name, files.Position(call.Pos()).Line)
			t.calls = append(t.calls, longCall{dir: dir, place: place, args: call.Args})
		}
		return true
	})
}

// importName returns the name by which a file calls package tier, or "".
func importName(f *ast.File) string {
	for _, i := range f.Imports {
		switch {
		case i.Path.Value != strconv.Quote(tierPackage):
		case i.Name != nil:
			return i.Name.Name
		default:
			return path.Base(tierPackage)
		}
	}
	return ""
}

var testName = regexp.MustCompile(`^(Test|Benchmark|Example|Fuzz)\w*`)

// lintLong returns the faults of the calls of Long.
func (t testFiles) lintLong() (problems []string) {
	for _, c := range t.calls {
		if wrong := t.wrong(c); wrong != "" {
			problems = append(problems, c.place+": tier.Long "+wrong)
		}
	}
	return problems
}

// wrong returns the fault of a call of Long, with the remedy, or "".
func (t testFiles) wrong(c longCall) string {
	const example = `for example "TestStepped plays 20 scripts"`
	var literal *ast.BasicLit
	if len(c.args) == 2 {
		literal, _ = c.args[1].(*ast.BasicLit)
	}
	if literal == nil || literal.Kind != token.STRING {
		return "has no string literal for its second argument: write what the quick tier has of the same, " + example
	}
	quick, err := strconv.Unquote(literal.Value)
	if err != nil {
		return err.Error()
	}
	name := testName.FindString(quick)
	long, exists := t.tests[c.dir][name]
	switch {
	case name == "":
		return fmt.Sprintf("says %q: begin with the name of a test that the quick tier runs, %s", quick, example)
	case !exists:
		return fmt.Sprintf("names %s, which is not in directory %s: name a test there that the quick tier runs", name, c.dir)
	case long:
		return fmt.Sprintf("names %s, which calls tier.Long itself: name a test that the quick tier runs", name)
	case len(strings.Fields(quick)) < 2:
		return fmt.Sprintf("names %s and says no more: add what that test has of the same, %s", name, example)
	}
	return ""
}
