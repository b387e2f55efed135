package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
)

// largestType is the type with the most methods, of all packages of the library.
type largestType struct {
	name           string
	methods, files int
}

func largestTypes(fs []*folder) (largest largestType) {
	for _, f := range fs {
		methods, files := map[string]int{}, map[string]map[string]bool{}
		for i, file := range f.files {
			for _, d := range file.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Recv == nil {
					continue
				}
				name := receiver(fn)
				if methods[name]++; files[name] == nil {
					files[name] = map[string]bool{}
				}
				files[name][f.names[i]] = true
			}
		}
		for name, n := range methods {
			t := largestType{f.dir + "." + name, n, len(files[name])}
			if t.methods > largest.methods || t.methods == largest.methods && t.name < largest.name {
				largest = t
			}
		}
	}
	return largest
}

// receiver returns the name of the type whose method fn is.
func receiver(fn *ast.FuncDecl) string {
	expr := fn.Recv.List[0].Type
	for {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return e.Name
		default:
			return ""
		}
	}
}

// longest is the longest function, or the longest text of SQL.
type longest struct {
	name  string
	lines int
}

func (l *longest) offer(name string, lines int) {
	if lines > l.lines || lines == l.lines && name < l.name {
		*l = longest{name, lines}
	}
}

// lengths returns the longest function of the library that decides something, its SQL texts not
// counted, and the longest text of SQL: a string, or a function that only puts strings together.
func lengths(fs []*folder) (function, sql longest) {
	for _, f := range fs {
		lines := func(n ast.Node) int { return f.fset.Position(n.End()).Line - f.fset.Position(n.Pos()).Line + 1 }
		for _, file := range f.files {
			for _, d := range file.Decls {
				texts, longestText, decides := 0, 0, false
				ast.Inspect(d, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.BasicLit:
						if texts += lines(n) - 1; isSQL(n) {
							longestText = max(longestText, lines(n))
						}
					case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt, *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt:
						decides = true
					}
					return true
				})
				_, ok := d.(*ast.FuncDecl)
				switch {
				case ok && decides:
					function.offer(place(f, d), lines(d)-texts)
				case ok && longestText > 0:
					longestText = lines(d)
				}
				sql.offer(place(f, d), longestText)
			}
		}
	}
	return function, sql
}

// longestFile returns the longest .sql file of the folders, its comments not counted.
func longestFile(root string, fs []*folder) (longest longest, err error) {
	for _, f := range fs {
		names, err := filepath.Glob(filepath.Join(root, f.dir, "sql", "*.sql"))
		if err != nil {
			return longest, err
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return longest, fmt.Errorf("gauges: %w", err)
			}
			n := 0
			for line := range strings.Lines(string(text)) {
				if !strings.HasPrefix(strings.TrimSpace(line), "--") {
					n++
				}
			}
			longest.offer(f.dir+"/sql/"+filepath.Base(name), n)
		}
	}
	return longest, nil
}

func isSQL(s *ast.BasicLit) bool {
	if s.Kind != token.STRING || s.Value[0] != '`' {
		return false
	}
	for _, word := range []string{"SELECT ", "INSERT INTO", "UPDATE ", "DELETE FROM", "CREATE ", "FROM ", "WHERE "} {
		if strings.Contains(s.Value, word) {
			return true
		}
	}
	return false
}

func place(f *folder, n ast.Node) string {
	return fmt.Sprintf("%s/%s:%d", f.dir, f.names[f.fileOf(n.Pos())], f.fset.Position(n.Pos()).Line)
}

// exported counts what users can name in the packages that they can import: constants, variables,
// functions, types and methods, also those that a type has from an embedded one without a name.
func exported(fs []*folder) (n int) {
	for _, f := range fs {
		if strings.Contains("/"+f.dir+"/", "/internal/") {
			continue
		}
		for _, name := range f.pkg.Scope().Names() {
			obj := f.pkg.Scope().Lookup(name)
			if !obj.Exported() {
				continue
			}
			n++
			named, ok := obj.Type().(*types.Named)
			if _, isType := obj.(*types.TypeName); !ok || !isType {
				continue
			}
			for m := range types.NewMethodSet(types.NewPointer(named)).Methods() {
				of := m.Obj().(*types.Func).Signature().Recv().Type()
				if p, ok := of.(*types.Pointer); ok {
					of = p.Elem()
				}
				receiver, ok := of.(*types.Named)
				if ok && m.Obj().Exported() && (receiver.Obj() == obj || receiver.Obj().Pkg() == f.pkg && !receiver.Obj().Exported()) {
					n++
				}
			}
		}
	}
	return n
}
