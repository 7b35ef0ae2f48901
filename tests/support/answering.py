"""A module that a launcher starts in place of a worker: it answers each request with itself."""

from packer.jobs.process import entry_point, read_requests, send

if __name__ == "__main__":
    with entry_point() as (descriptor, answers):
        requests = read_requests(descriptor)
        send(answers, event="ready")
        while True:
            send(answers, event="done", result=requests.get())
