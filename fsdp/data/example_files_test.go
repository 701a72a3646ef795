package data_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/fsdp/data"
)

// scratch returns a path for the file of an example.
func scratch(name string) (path string, remove func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	return filepath.Join(dir, name), func() { os.RemoveAll(dir) }
}

// A program writes tokens once, and trainings read windows of them.
func ExampleCreateTokens() {
	path, remove := scratch("train.bin")
	defer remove()

	w, err := data.CreateTokens(path, 16)
	if err != nil {
		log.Fatal(err)
	}
	defer w.Abort() // does nothing after Close
	for _, text := range []string{"to be or", "not to be"} {
		var tokens []int
		for _, letter := range text {
			tokens = append(tokens, int(letter-'a')&31)
		}
		w.Write(tokens)
		w.EndDocument()
	}
	if err := w.Close(); err != nil { // the first error of all calls
		log.Fatal(err)
	}

	tokens, err := data.OpenTokens(path, 16)
	if err != nil {
		log.Fatal(err)
	}
	defer tokens.Close()
	windows := tokens.Windows(6, 5)
	for i := range windows.Len() {
		window, err := windows.At(i)
		fmt.Println(window, err)
	}
	fmt.Println(windows)
	documents, lengths, err := tokens.Documents()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(documents.At(1))
	fmt.Println(lengths.At(1))
	// Output:
	// [19 14 31 1 4 31] <nil>
	// [31 14 17 13 14 19] <nil>
	// [19 31 19 14 31 1] <nil>
	// train.bin(3 windows of 6 tokens with a step of 5)
	// [13 14 19 31 19 14 31 1 4] <nil>
	// 9 <nil>
}

func ExampleOpenCSV() {
	path, remove := scratch("flowers.csv")
	defer remove()
	const text = `petal length,petal width,kind
1.4,0.2,setosa
4.7,1.4,versicolor
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		log.Fatal(err)
	}

	type flower struct {
		Petal [2]float32 `data:"petal *"`
		Kind  string     `data:"kind"`
	}
	flowers, err := data.OpenCSV[flower](path)
	if err != nil {
		log.Fatal(err)
	}
	defer flowers.Close()
	for i := range flowers.Len() {
		fmt.Println(flowers.At(i))
	}
	// Output:
	// {[1.4 0.2] setosa} <nil>
	// {[4.7 1.4] versicolor} <nil>
}

func ExampleOpenJSON() {
	path, remove := scratch("sums.jsonl")
	defer remove()
	const text = `{"text": "1+1", "answer": 2, "from": "school"}
{"text": "2+2", "answer": 4}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		log.Fatal(err)
	}

	type question struct {
		Text   string
		Answer int
	}
	questions, err := data.OpenJSON[question](path)
	if err != nil {
		log.Fatal(err)
	}
	defer questions.Close()
	for i := range questions.Len() {
		fmt.Println(questions.At(i))
	}
	// Output:
	// {1+1 2} <nil>
	// {2+2 4} <nil>
}
