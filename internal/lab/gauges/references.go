package main

import (
	"go/ast"
	"math"
	"math/rand/v2"
	"slices"
)

// reference is a pair of files of a package: the first uses a name that the second declares.
type reference struct{ from, to int }

// references returns the references between the files of f, each with the weight 1.
func references(f *folder) map[reference]int {
	found := map[reference]int{}
	for i, file := range f.files {
		ast.Inspect(file, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			if obj := f.info.Uses[id]; obj != nil && obj.Pkg() == f.pkg && obj.Pos().IsValid() {
				if j := f.fileOf(obj.Pos()); j >= 0 && j != i {
					found[reference{i, j}] = 1
				}
			}
			return true
		})
	}
	return found
}

// starts is the number of orders from which the search begins.
const starts = 200

// order returns the files of a package in an order in which the references that point back to an
// earlier file have a small sum of weights, and that sum. Equal arguments have equal results.
func order(files int, refs map[reference]int) (best []int, up int) {
	up = math.MaxInt
	rng := rand.New(rand.NewPCG(1, uint64(files)))
	for range starts {
		o := rng.Perm(files)
		for improve(o, refs) {
		}
		if n := upwards(o, refs); n < up {
			best, up = o, n
		}
	}
	return best, up
}

func upwards(o []int, refs map[reference]int) (n int) {
	place := make([]int, len(o))
	for i, file := range o {
		place[file] = i
	}
	for r, weight := range refs {
		if place[r.to] < place[r.from] {
			n += weight
		}
	}
	return n
}

// improve moves each file to the place where it points back least, and reports whether that
// changed the order.
func improve(o []int, refs map[reference]int) (improved bool) {
	gain := func(from, to int) int { // of putting from before to
		return refs[reference{from, to}] - refs[reference{to, from}]
	}
	for i := range o {
		file, sum, most, place := o[i], 0, 0, i
		for j := i + 1; j < len(o); j++ {
			if sum += gain(o[j], file); sum > most {
				most, place = sum, j
			}
		}
		sum = 0
		for j := i - 1; j >= 0; j-- {
			if sum += gain(file, o[j]); sum > most {
				most, place = sum, j
			}
		}
		if most > 0 {
			copy(o, slices.Insert(slices.Delete(slices.Clone(o), i, i+1), place, file))
			improved = true
		}
	}
	return improved
}
