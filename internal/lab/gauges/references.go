package main

import (
	"go/ast"
	"math/rand/v2"
	"slices"
)

// reference is a pair of files of a package: the first uses a name that the second declares.
type reference struct{ from, to int }

// references returns the references between the files of f.
func references(f *folder) map[reference]bool {
	found := map[reference]bool{}
	for i, file := range f.files {
		ast.Inspect(file, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			if obj := f.info.Uses[id]; obj != nil && obj.Pkg() == f.pkg && obj.Pos().IsValid() {
				if j := f.fileOf(obj.Pos()); j >= 0 && j != i {
					found[reference{i, j}] = true
				}
			}
			return true
		})
	}
	return found
}

// starts is the number of orders from which the search begins.
const starts = 20

// order returns the files of a package so that few of the references point back to an earlier
// file, and how many do. Equal arguments have equal results.
func order(files int, refs map[reference]bool) (best []int, up int) {
	up = len(refs) + 1
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

func upwards(o []int, refs map[reference]bool) (n int) {
	place := make([]int, len(o))
	for i, file := range o {
		place[file] = i
	}
	for r := range refs {
		if place[r.to] < place[r.from] {
			n++
		}
	}
	return n
}

// improve moves each file to the place where it points back least, and reports whether that
// changed the order.
func improve(o []int, refs map[reference]bool) (improved bool) {
	gain := func(from, to int) int { // of putting from before to
		n := 0
		if refs[reference{from, to}] {
			n++
		}
		if refs[reference{to, from}] {
			n--
		}
		return n
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
