package mutants

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	root   = "../../.."
	module = "github.com/pgfrontier/worker"
)

func TestEveryMutantCanBeMade(t *testing.T) {
	packages := list(t)
	names := map[string]bool{}
	for _, m := range append(All(), Apart) {
		t.Run(m.Name, func(t *testing.T) {
			if names[m.Name] || m.Mistake == "" || len(m.Edits) == 0 {
				t.Fatalf("the name must be its own, and the mutant must say what it is and does: %+v", m)
			}
			names[m.Name] = true
			if m.Test.Name != "" && !there(t, m.Test) {
				t.Errorf("there is no test %s in %s", m.Test.Name, m.Test.Package)
			}
			variants, err := m.Variants(root)
			if err != nil {
				t.Fatal(err)
			}
			changed := map[string]bool{}
			for name, text := range variants {
				if path.Ext(name) == ".sql" && strings.Contains(text, "`") {
					t.Errorf("%s has a backquote, which is of Go", name)
				}
				changed[strings.TrimSuffix(path.Dir(name), "/sql")] = true
			}
			for dir := range changed {
				if err := packages.check(dir, variants); err != nil {
					t.Errorf("does not compile: %v", err)
				}
			}
		})
	}
}

// there reports whether a test is: go test finds nothing wrong with a name that is none's.
func there(t *testing.T, test Test) bool {
	t.Helper()
	name, _, _ := strings.Cut(test.Name, "/")
	files, err := filepath.Glob(filepath.Join(root, test.Package, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(text), "\nfunc "+name+"(")
	})
}

// packages are the module's, with all that they need.
type packages struct {
	files    map[string][]string // of a folder of the module
	exports  map[string]string   // by import path, the file with what the package exports
	set      *token.FileSet
	importer types.Importer       // reads what a package exports once
	parsed   map[string]*ast.File // files as they are, by name from the root
}

func list(t *testing.T) packages {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", `{{.ImportPath}}|{{.Export}}|{{join .GoFiles " "}}`, "./cmd/sim", "./jobs/table")
	cmd.Dir = root
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, complaint.String())
	}
	p := packages{files: map[string][]string{}, exports: map[string]string{}, set: token.NewFileSet(), parsed: map[string]*ast.File{}}
	p.importer = importer.ForCompiler(p.set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(p.exports[path]) })
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSpace(line), "|")
		p.exports[fields[0]] = fields[1]
		if fields[0] == module {
			p.files["."] = strings.Fields(fields[2])
		} else if dir, own := strings.CutPrefix(fields[0], module+"/"); own {
			p.files[dir] = strings.Fields(fields[2])
		}
	}
	return p
}

// check type-checks a package with some files changed.
func (p packages) check(dir string, variants map[string]string) error {
	var parsed []*ast.File
	if len(p.files[dir]) == 0 {
		return fmt.Errorf("neither the sim nor a test of a mutant uses package %s", dir)
	}
	for _, name := range p.files[dir] {
		name = path.Join(dir, name)
		f, err := p.parse(name, variants)
		if err != nil {
			return err
		}
		parsed = append(parsed, f)
	}
	config := types.Config{Importer: p.importer}
	_, err := config.Check(dir, p.set, parsed, nil)
	return err
}

// parse parses a file as it is in variants, or else as it is on disk, which it does once.
func (p packages) parse(name string, variants map[string]string) (*ast.File, error) {
	if text, changed := variants[name]; changed {
		return parser.ParseFile(p.set, name, text, parser.SkipObjectResolution)
	}
	if f := p.parsed[name]; f != nil {
		return f, nil
	}
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		return nil, err
	}
	f, err := parser.ParseFile(p.set, name, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	p.parsed[name] = f
	return f, nil
}
