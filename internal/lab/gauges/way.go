package main

import (
	"fmt"
	"go/ast"
	"go/types"
)

// wayType and wayFunc name the method that leads an event from the loop to its commit.
const wayType, wayFunc = "consumerLoop", "run"

// climbs counts the static calls of the event's way whose target stands in a file above the
// caller's, in the order of files in which the fewest do.
func climbs(fs []*folder) (int, error) {
	for _, f := range fs {
		bodies := map[types.Object]*ast.FuncDecl{}
		var entry types.Object
		for _, file := range f.files {
			for _, d := range file.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Body == nil {
					continue
				}
				bodies[f.info.Defs[fn.Name]] = fn
				if fn.Recv != nil && receiver(fn) == wayType && fn.Name.Name == wayFunc {
					entry = f.info.Defs[fn.Name]
				}
			}
		}
		if entry != nil {
			return climbsFrom(f, bodies, entry), nil
		}
	}
	return 0, fmt.Errorf("gauges: no package of the library has a method %s.%s: say in way.go where an event's way begins", wayType, wayFunc)
}

func climbsFrom(f *folder, bodies map[types.Object]*ast.FuncDecl, entry types.Object) int {
	calls := map[reference]int{}
	seen := map[types.Object]bool{entry: true}
	for next := []types.Object{entry}; len(next) > 0; {
		caller := next[0]
		next = next[1:]
		called := map[types.Object]bool{}
		ast.Inspect(bodies[caller].Body, func(node ast.Node) bool {
			id, ok := node.(*ast.Ident)
			if !ok {
				return true
			}
			callee := f.info.Uses[id]
			if fn, ok := callee.(*types.Func); ok {
				callee = fn.Origin()
			}
			if bodies[callee] == nil || called[callee] {
				return true
			}
			called[callee] = true
			if from, to := f.fileOf(caller.Pos()), f.fileOf(callee.Pos()); from != to {
				calls[reference{from, to}]++
			}
			if !seen[callee] {
				seen[callee] = true
				next = append(next, callee)
			}
			return true
		})
	}
	_, up := order(len(f.files), calls)
	return up
}
