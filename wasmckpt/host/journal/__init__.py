"""A journal between images: what is killed goes on as if nothing had happened; nothing is lost, nothing comes twice.

A program that is restored from an image does again what it did after the image was taken. It need not do the same: the
clock has gone on, random numbers are others, input has been read and is gone. And what it wrote is written again. So
every call that it makes to its host is written down: which, a digest of the arguments, the result, what was stored in
its memory. After a kill it runs again from the image, its calls are answered from the journal and checked against it,
none is made, and so it arrives with the same memory, and on whatever runtime, at the call at which it was killed.
That one, and all that come after, are made.

::

    image                                                  kill
      |---- call ---- call ---- call ---- call ---- call ---x
      |  the journal: made, and written down                          first life
      |---- call ---- call ---- call ---- call ---- call ---- call ---- call ...
      |  answered from the journal, none is made           |  made    second life

All of the program's state follows from its memory and these answers; that of the host does not, since nothing is done
in a replay. So a call that changes it (opens a file, moves a position) says in the journal how, in the words in which
an image has it, and before the replay the host is restored from the image's state with these changes applied:
descriptors are the real ones from the beginning.

What is written when
--------------------
Results are kept in memory and written together (group commit): before something leaves the program, before it waits,
when there are 64 KiB of them. Who is killed earlier forgets clocks that it read and random numbers that it drew; nobody
has seen what came of them. What leaves (bytes into a stream, a change of a file, input taken from a pipe, a call of the
user's function) is written down before it is done, as an intent, with all that led to it; and after it, as a call, with
the next group. So at most one thing is in doubt after a kill: the intent at the journal's end. Was it done?

*Bytes into a pipe, a terminal, a socket* cannot be looked at afterwards: they may have been read. A counter that is
raised after the write does not help, the kill comes in between. But the kernel keeps one for us. The intent holds the
bytes, and they are sent from the journal's file, by ``sendfile``, whose position the kernel itself writes back before
the call is over; that position lies in a page of the file that is mapped and shared, and so it outlives us. A thread is
only killed on its way back out of the kernel, behind both. (400 processes killed while they wrote 37 bytes at a time
into a pipe: position and bytes received were always equal. With ``write`` and a counter in the same page: not in most.)
*Input from a pipe* goes the other way round: ``splice`` moves it into the journal's file, the position says how much,
and the bytes are there even if nobody lived to hear of them. There are two such cells, used in turn, since that of one
transfer is good until the next one's intent, which comes with its completion, is written.

*Files in folders*: most calls may simply be made again (the same bytes to the same place, the same length, the same
times). For the others (append, make, remove, rename, link) the intent says what was there before; who makes the call
again looks once more, and what has changed was the call (`doubt`).

*Functions of the user's*: a repeatable one is made again if it had not returned. For an atomic one nobody knows.

What cannot be known
--------------------
- Whether an atomic function of the user's that had not returned has done what it does.
- Whether the last bytes came out where the kernel does not move them by itself (a file opened for appending is looked
  at, if it is still the one; other cases are devices).
  In both cases `JournalOptions.in_doubt` says what to do; by default the restore is refused.
- Bytes that were just being read from a terminal or socket are lost if the kill comes between the kernel and us.
- Other processes that change the same files at the same moment, or write into the same stream.
- That somebody has the output: what is in a pipe whose readers are all gone is gone.

What is promised
----------------
Kill of the program's process, its runtime's crash, kill of the command and all of its processes at any moment: nothing
is lost and nothing comes twice, but for the list above. ``sync="always"``: after a power cut as well, except that the
very last output may come twice: files and journal are written through to the disk before each effect. ``sync="batch"``
(the default): after a power cut the journal may lack its last tenth of a second, and what had come out of that comes
again. Without a journal: a restart repeats what came after the image, output included, with other clocks, random
numbers and input. A full disk: the program is stopped, before it does what cannot be written down.

A file without a name (removed while it was open) dies with its process. An image carries it, a journal does not: a
restore that needs it says so.

Images
------
An image says how many calls came before it, and in which life: each start and each restore draws 16 random bytes and
writes them into the journal. So the image and the journal fit whichever was replaced last: calls before the image are
passed over. The journal is cut after the image is in its place, by the guest's thread between two calls, and the
shorter file takes the place of the longer as a whole. Until then the longer one does for the new image as well as for
the old. A call that waits while the image is taken has not begun, for both. While a replay lasts the host is ahead of
the program, so images have to wait for its end.

The first image is taken before the program runs. Pages that the guest discarded stay in the images of a program with a
journal: the replay would find them zero, and not be told.

Cost: see docs/benchmarks.md. A pipe into which bytes go by reference holds sixteen writes, however small, not 64 KiB.

Files: `file` the format, frames and cells; `items` what is in them; `recorder` makes, writes, answers; `doubt` looks.
"""
