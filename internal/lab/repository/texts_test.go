package repository_test

import (
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Links in the texts lead to a file, and to a heading of it.
func TestLinksOfTexts(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, file := range texts(t) {
		for _, found := range link.FindAllStringSubmatch(read(t, file), -1) {
			to, heading, _ := strings.Cut(found[1], "#")
			if strings.Contains(to, "://") {
				continue
			}
			target := path.Join(path.Dir(file), to)
			if to == "" {
				target = file
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s: %v", file, found[0], err)
			} else if heading != "" && !slices.Contains(anchors(read(t, target)), heading) {
				t.Errorf("%s: %s: there is no such heading", file, found[0])
			}
		}
	}
}

// Files that the texts name exist.
func TestFilesNamedByTexts(t *testing.T) {
	name := regexp.MustCompile("`([a-z_/]+\\.go)`")
	for _, file := range texts(t) {
		if path.Base(file) == "README.md" {
			continue // the file of its quick start is the reader's
		}
		for _, found := range name.FindAllStringSubmatch(read(t, file), -1) {
			if _, err := os.Stat(found[1]); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

// The tests that the list of promises names exist, in the folders that it names.
func TestPromisesHaveTests(t *testing.T) {
	group := regexp.MustCompile("(?:`([a-z0-9/]+)`|the root): ((?:`Test\\w+`(?:, )?)+)")
	test := regexp.MustCompile(`Test\w+`)
	_, list, _ := strings.Cut(read(t, "CONTRIBUTING.md"), "## Promises")
	seen := 0
	for _, found := range group.FindAllStringSubmatch(list, -1) {
		files, err := filepath.Glob(filepath.Join(found[1], "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, file := range files {
			text += read(t, file)
		}
		for _, name := range test.FindAllString(found[2], -1) {
			if seen++; !strings.Contains(text, "func "+name+"(") {
				t.Errorf("%s has no %s", found[1], name)
			}
		}
	}
	if seen < 75 {
		t.Errorf("the list names %d tests only: this test does not see them", seen)
	}
}

// The list of examples has a command for each, and no other.
func TestFilesOfExamples(t *testing.T) {
	mains, err := filepath.Glob("examples/*/main.go")
	if err != nil || len(mains) == 0 {
		t.Fatalf("%v, %v", mains, err)
	}
	var want []string
	for _, main := range mains {
		want = append(want, "| `go run ./"+path.Dir(filepath.ToSlash(main))+"`")
	}
	got := regexp.MustCompile("(?m)^\\| `go run [^`]*`").FindAllString(read(t, "examples/README.md"), -1)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the list has\n%q, the folder\n%q", got, want)
	}
}

// documented are the folders of the packages that users import.
var documented = []string{
	".", "store", "store/consumer", "store/postgres", "store/pgxtx", "frontier", "coord", "migrations", "ops", "ops/console",
	"jobs", "jobs/flow", "jobs/schedule", "jobs/table", "observe", "observe/health", "observe/metrics",
	"observe/otel", "observe/prometheus", "workertest",
}

// Links in comments of the library lead to something exported.
func TestLinksOfComments(t *testing.T) {
	link := regexp.MustCompile(`\B\[(?:` + module + `/)?([a-z/]+\.)?([A-Z]\w*(?:\.\w+)?)\]`)
	exported := map[string][]string{} // by name of the package
	comments := map[string]string{}
	for _, folder := range documented {
		name, names, text := parse(t, folder)
		exported[name], comments[name] = names, text
	}
	for of, text := range comments {
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			in := strings.TrimSuffix(found[1], ".")
			if in == "" {
				in = of
			}
			if known, ours := exported[path.Base(in)]; ours && !slices.Contains(known, found[2]) {
				t.Errorf("package %s: %s leads nowhere", of, found[0])
			}
		}
	}
	if links := len(link.FindAllString(comments["worker"], -1)); links < 30 {
		t.Errorf("the manual has %d links only: this test does not see them", links)
	}
}

func texts(t *testing.T) (files []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "examples/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		files = append(files, found...)
	}
	return files
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// anchors are the headings of a text, as links name them.
func anchors(markdown string) (all []string) {
	heading := regexp.MustCompile(`(?m)^#+ (.*)$`)
	odd := regexp.MustCompile(`[^a-z0-9 _-]`)
	for _, found := range heading.FindAllStringSubmatch(markdown, -1) {
		plain := odd.ReplaceAllString(strings.ToLower(found[1]), "")
		all = append(all, strings.ReplaceAll(plain, " ", "-"))
	}
	return all
}

// parse returns the exported names of a folder's package, those of fields and methods as Type.Name,
// and all its comments. Methods of an unexported embedded type are the type's own, as in go doc.
func parse(t *testing.T, folder string) (name string, exported []string, comments string) {
	t.Helper()
	found, err := build.ImportDir(folder, 0)
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	set := token.NewFileSet()
	for _, name := range found.GoFiles {
		file, err := parser.ParseFile(set, filepath.Join(folder, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range file.Comments {
			comments += c.Text()
		}
		ast.Inspect(file, func(n ast.Node) bool {
			exported = append(exported, declared(n)...)
			return true
		})
		files = append(files, file)
	}
	pkg, err := doc.NewFromFiles(set, files, module+"/"+folder) // it removes what is not exported from the files
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range pkg.Types {
		for _, method := range of.Methods {
			exported = append(exported, of.Name+"."+method.Name)
		}
	}
	return found.Name, exported, comments
}

// declared returns what a node declares.
func declared(n ast.Node) (names []string) {
	switch d := n.(type) {
	case *ast.FuncDecl:
		of := ""
		if d.Recv != nil {
			of, _, _ = strings.Cut(strings.Trim(types.ExprString(d.Recv.List[0].Type), "*"), "[")
			of += "."
		}
		return []string{of + d.Name.Name}
	case *ast.ValueSpec:
		for _, name := range d.Names {
			names = append(names, name.Name)
		}
	case *ast.TypeSpec:
		names = append(names, d.Name.Name)
		for _, field := range members(d.Type) {
			for _, name := range field.Names {
				names = append(names, d.Name.Name+"."+name.Name)
			}
		}
	}
	return names
}

// members are the fields of a struct, or the methods of an interface.
func members(of ast.Expr) []*ast.Field {
	switch t := of.(type) {
	case *ast.StructType:
		return t.Fields.List
	case *ast.InterfaceType:
		return t.Methods.List
	}
	return nil
}
