// Reads histories of partitions as JSON lines, an operation a line, and tells of each whether it is linearizable.
//
// The model is a partition under read_committed: a log of entries, each of which is open, committed or aborted. Readers
// see the committed entries before the first open one, in the order of the log, and nothing else. In a queue, an entry is
// taken while it is there, and an ack removes it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// How long the search may take for one history.
const patience = 20 * time.Second

const (
	open      = 'o'
	committed = 'c'
)

// An operation is a line of a history.
type operation struct {
	History string `json:"history"`
	Client  int    `json:"client"`
	Kind    string `json:"kind"`
	Tag     int    `json:"tag"`
	Call    int64  `json:"call"`
	Return  *int64 `json:"return"` // None: at any time after its call, or never.
	Sure    bool   `json:"sure"`   // Whether it took effect for certain.
	Read    []int  `json:"read"`
}

// A state is the log: two runes an entry, its tag and whether it is open. Tags are below 0xD800.
// Aborted entries are not in it: nobody sees where they were.
type state string

// The place of a tag's entry, or -1.
func find(entries []rune, tag int) int {
	for at := 0; at < len(entries); at += 2 {
		if entries[at] == rune(tag) {
			return at
		}
	}
	return -1
}

// What readers see.
func visible(entries []rune) []int {
	seen := []int{}
	for at := 0; at < len(entries) && entries[at+1] == committed; at += 2 {
		seen = append(seen, int(entries[at]))
	}
	return seen
}

// Whether an operation can come next, and the log after it.
//
// One that is not sure took effect or not, and comes at any place where it changes nothing if it did not. A transaction
// that never began in this partition is one that began, and was aborted at once: so an abort follows its begin.
func step(before state, op operation) (bool, state) {
	entries := []rune(before)
	at := find(entries, op.Tag)
	isOpen := at >= 0 && entries[at+1] == open
	switch op.Kind {
	case "read":
		return slices.Equal(visible(entries), op.Read), before
	case "begin":
		return at < 0, state(append(entries, rune(op.Tag), open))
	case "append":
		return at < 0, state(append(entries, rune(op.Tag), committed))
	case "take":
		return at >= 0, before
	case "ack":
		if at < 0 {
			return !op.Sure, before
		}
		return true, state(slices.Delete(entries, at, at+2))
	case "commit":
		if !isOpen {
			return !op.Sure, before
		}
		entries[at+1] = committed
		return true, state(entries)
	case "abort":
		if !isOpen {
			return at >= 0 && !op.Sure, before
		}
		return true, state(slices.Delete(entries, at, at+2))
	}
	return false, before
}

var model = porcupine.Model{
	Init: func() any { return state("") },
	Step: func(before, input, _ any) (bool, any) { return step(before.(state), input.(operation)) },
}

// The histories by name.
func histories(file *os.File) (map[string][]porcupine.Operation, error) {
	found := map[string][]porcupine.Operation{}
	lines := json.NewDecoder(bufio.NewReader(file))
	for lines.More() {
		var op operation
		if err := lines.Decode(&op); err != nil {
			return nil, err
		}
		end := int64(math.MaxInt64)
		if op.Return != nil {
			end = *op.Return
		}
		whole := porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Call, Return: end}
		found[op.History] = append(found[op.History], whole)
	}
	return found, nil
}

func main() {
	found, err := histories(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for name, operations := range found {
		result := porcupine.CheckOperationsTimeout(model, operations, patience)
		answer, _ := json.Marshal(map[string]any{"history": name, "result": result, "operations": len(operations)})
		fmt.Println(string(answer))
	}
}
