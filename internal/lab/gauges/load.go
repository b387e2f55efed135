package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const module = "github.com/pgfrontier/worker"

// notLibrary are the folders that users do not import.
var notLibrary = []string{"internal/lab", "internal/e2e", "internal/progress/progresstest", "sim", "chaos", "cmd", "ops/console"}

// folder is a package without its tests, with types.
type folder struct {
	dir   string // below the root of the module, "." for the root
	name  string
	fset  *token.FileSet
	files []*ast.File
	names []string // of the files, in the order of files
	info  *types.Info
	pkg   *types.Package
}

// library reports whether users import f, or what they import needs it.
func (f *folder) library() bool {
	return !slices.ContainsFunc(notLibrary, func(dir string) bool { return f.under(dir) })
}

// under reports whether f is dir or below it.
func (f *folder) under(dir string) bool { return f.dir == dir || strings.HasPrefix(f.dir, dir+"/") }

// fileOf returns the index of the file that has pos, or -1.
func (f *folder) fileOf(pos token.Pos) int {
	return slices.Index(f.names, filepath.Base(f.fset.Position(pos).Filename))
}

// listed is what go list says of a package.
type listed struct {
	Dir, ImportPath, Name, Export string
	GoFiles                       []string
	DepOnly                       bool
}

// load reads all packages of the module in root and finds their types.
func load(root string) ([]*folder, error) {
	cmd := exec.Command("go", "list", "-deps", "-export", "-json=Dir,ImportPath,Name,Export,GoFiles,DepOnly", "./...")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOWORK=off") // one module, as the figures are of one
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("gauges: go list: %w", err)
	}
	exports := map[string]string{}
	var own []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var l listed
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("gauges: go list: %w", err)
		}
		exports[l.ImportPath] = l.Export
		if !l.DepOnly && len(l.GoFiles) > 0 {
			own = append(own, l)
		}
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	var folders []*folder
	for _, l := range own {
		f, err := check(l, fset, imports)
		if err != nil {
			return nil, err
		}
		folders = append(folders, f)
	}
	return folders, nil
}

func check(l listed, fset *token.FileSet, imports types.Importer) (*folder, error) {
	f := &folder{name: l.Name, fset: fset, info: &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}}
	f.dir = strings.TrimPrefix(strings.TrimPrefix(l.ImportPath, module), "/")
	if f.dir == "" {
		f.dir = "."
	}
	for _, name := range l.GoFiles {
		file, err := parser.ParseFile(fset, filepath.Join(l.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("gauges: %w", err)
		}
		f.files, f.names = append(f.files, file), append(f.names, name)
	}
	var err error
	if f.pkg, err = (&types.Config{Importer: imports}).Check(l.ImportPath, fset, f.files, f.info); err != nil {
		return nil, fmt.Errorf("gauges: %w", err)
	}
	return f, nil
}
