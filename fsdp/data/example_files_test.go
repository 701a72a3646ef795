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
