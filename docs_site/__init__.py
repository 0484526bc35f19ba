"""What MkDocs needs beside the pages of docs/ to make a site of them."""
