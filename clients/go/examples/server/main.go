// A server that serves each client address as often as Tidegate's rules allow.
//
//	PORT=3000 go run ./examples/server
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"

	"tidegate"
)

func main() {
	client, err := tidegate.New(tidegate.Config{})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "hello, world")
	})
	limited := client.Middleware(mux, tidegate.ClientKey("web"))

	port := os.Getenv("PORT")
	if port == "" {
		port = "3000"
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("http://%s\n", listener.Addr())
	log.Fatal(http.Serve(listener, limited))
}
