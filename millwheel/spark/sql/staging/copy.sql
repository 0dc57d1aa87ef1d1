COPY {staging} ({columns}) FROM STDIN
